//! Column types that neither Rust nor JSON has.

use postonce_schema::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueRef};
use sqlx::{Decode, Postgres, Type};
use std::fmt;

/// An amount or balance of minor units. `numeric` in Postgres, selected as text;
/// a string in JSON, where an integer above 2^53 would be rounded by its reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MinorUnits(pub i128);

/// A point in time; selected as microseconds since 1970, which is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct When(pub Timestamp);

impl fmt::Display for MinorUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for MinorUnits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MinorUnits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}

impl Type<Postgres> for MinorUnits {
    fn type_info() -> PgTypeInfo {
        <str as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for MinorUnits {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(<&str as Decode<Postgres>>::decode(value)?.parse()?))
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for When {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Type<Postgres> for When {
    fn type_info() -> PgTypeInfo {
        <i64 as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for When {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let micros = <i64 as Decode<Postgres>>::decode(value)?;
        let time = Timestamp::from_micros(micros).ok_or("a time outside the years 1970 to 9999")?;
        Ok(Self(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_strings_in_json() {
        let beyond = MinorUnits(i128::from(i64::MAX) * 1000);
        assert_eq!(serde_json::to_string(&beyond).unwrap(), "\"9223372036854775807000\"");
        assert_eq!(serde_json::from_str::<MinorUnits>("\"9223372036854775807000\"").unwrap(), beyond);
        assert_eq!(serde_json::to_string(&MinorUnits(-5)).unwrap(), "\"-5\"");
    }
}
