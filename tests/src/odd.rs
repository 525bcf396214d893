//! What Kafka carries and Rust's clients would not write.
#![allow(unsafe_code, reason = "raw bindings to libc or librdkafka, in tests")]

use std::ffi::CStr;
use std::ptr;
use std::time::Duration;

use anyhow::{Result, bail};
use rdkafka::ClientConfig;
use rdkafka::bindings as c;
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::types::RDKafkaRespErr;

use crate::messages::Message;

/// Sends a message with a header more, whose name need not be UTF-8.
pub fn send_with_header(bootstrap: &str, topic: &str, message: &Message, name: &CStr, value: &[u8]) -> Result<()> {
    let producer: BaseProducer = ClientConfig::new().set("bootstrap.servers", bootstrap).set("acks", "all").create()?;
    let topic = std::ffi::CString::new(topic)?;
    let mem = |bytes: &Option<Vec<u8>>| c::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_1 {
        ptr: bytes.as_ref().map_or(ptr::null_mut(), |bytes| bytes.as_ptr().cast_mut().cast()),
        size: bytes.as_ref().map_or(0, Vec::len),
    };
    let header = c::rd_kafka_vu_s__bindgen_ty_1__bindgen_ty_2 {
        name: name.as_ptr(),
        val: value.as_ptr().cast(),
        size: value.len().try_into()?,
    };
    use c::rd_kafka_vtype_t::*;
    let units = [
        c::rd_kafka_vu_t { vtype: RD_KAFKA_VTYPE_TOPIC, u: c::rd_kafka_vu_s__bindgen_ty_1 { cstr: topic.as_ptr() } },
        c::rd_kafka_vu_t {
            vtype: RD_KAFKA_VTYPE_PARTITION,
            u: c::rd_kafka_vu_s__bindgen_ty_1 { i32_: message.partition.unwrap_or(0) },
        },
        c::rd_kafka_vu_t {
            vtype: RD_KAFKA_VTYPE_VALUE,
            u: c::rd_kafka_vu_s__bindgen_ty_1 { mem: mem(&message.value) },
        },
        c::rd_kafka_vu_t { vtype: RD_KAFKA_VTYPE_KEY, u: c::rd_kafka_vu_s__bindgen_ty_1 { mem: mem(&message.key) } },
        c::rd_kafka_vu_t { vtype: RD_KAFKA_VTYPE_HEADER, u: c::rd_kafka_vu_s__bindgen_ty_1 { header } },
        c::rd_kafka_vu_t {
            vtype: RD_KAFKA_VTYPE_MSGFLAGS,
            u: c::rd_kafka_vu_s__bindgen_ty_1 { i: c::RD_KAFKA_MSG_F_COPY },
        },
    ];
    // SAFETY: every pointer lives until after the call, which copies the bytes (MSG_F_COPY;
    // librdkafka always copies headers). The error object is ours to destroy.
    unsafe {
        let error = c::rd_kafka_produceva(producer.client().native_ptr(), units.as_ptr(), units.len());
        if !error.is_null() {
            let code: RDKafkaRespErr = c::rd_kafka_error_code(error);
            c::rd_kafka_error_destroy(error);
            bail!("librdkafka refuses the message: {code:?}");
        }
    }
    producer.flush(Duration::from_secs(30))?;
    Ok(())
}
