//! Postonce.
