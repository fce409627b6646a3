//! Typed values of a GGUF file's metadata.
//!
//! Neighbours: `architecture` and `text::gguf` ask for what they need. Writers differ in integer widths, so every
//! integer that fits is taken, and a whole number where a float is expected; anything else is an error that names the
//! key, what it holds and what it should.

use candle_core::quantized::gguf_file::Value;

use super::{Gguf, GgufError};

/// A type that metadata values are read as.
pub trait FromValue: Sized {
    /// What to call it in an error.
    const EXPECTED: &'static str;

    /// `None` if the value is of another type.
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for usize {
    const EXPECTED: &'static str = "a whole number";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => v.try_into().ok(),
            Value::U64(v) => v.try_into().ok(),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }
}

impl FromValue for u32 {
    const EXPECTED: &'static str = "a token id";

    fn from_value(value: &Value) -> Option<Self> {
        usize::from_value(value)?.try_into().ok()
    }
}

impl FromValue for f64 {
    const EXPECTED: &'static str = "a number";

    fn from_value(value: &Value) -> Option<Self> {
        match *value {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => usize::from_value(value).map(|whole| whole as f64),
        }
    }
}

impl FromValue for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Bool(v) = value { Some(*v) } else { None }
    }
}

impl FromValue for String {
    const EXPECTED: &'static str = "a string";

    fn from_value(value: &Value) -> Option<Self> {
        if let Value::String(v) = value { Some(v.clone()) } else { None }
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    const EXPECTED: &'static str = "an array, each element";

    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Array(values) = value { values.iter().map(T::from_value).collect() } else { None }
    }
}

impl Gguf {
    /// The value of `key`, if there is one.
    pub fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.content.metadata.get(key) else { return Ok(None) };
        T::from_value(value).map(Some).ok_or_else(|| GgufError::WrongValue {
            path: self.path.clone(),
            key: key.to_owned(),
            got: describe(value),
            expected: T::EXPECTED.to_owned(),
        })
    }

    /// The value of `key`, which must be there.
    pub fn need<T: FromValue>(&self, key: &str) -> Result<T, GgufError> {
        self.get(key)?.ok_or_else(|| GgufError::MissingKey {
            path: self.path.clone(),
            key: key.to_owned(),
            expected: T::EXPECTED.to_owned(),
        })
    }
}

/// A value in a message: arrays by their length, long strings by their beginning.
fn describe(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let first = values.first().map_or_else(String::new, |first| format!(", the first {}", describe(first)));
            format!("an array of {}{first}", values.len())
        }
        Value::String(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        other => format!("{other:?}"),
    }
}
