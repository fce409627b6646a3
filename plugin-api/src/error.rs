//! The one error that crosses the border, and the narrow one of [`Drafts`](crate::Drafts).
//!
//! An error is a kind (what the engine does about it) and a message (what a person does about it). Foreign error
//! types do not cross: their vtables live in the library that made them.

/// What the engine does about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorKind {
    /// This call failed; the instance may be called again.
    Failed = 0,
    /// The part cannot serve this engine or model, and says why; load stops.
    Refused = 1,
    /// The options table is wrong; load stops with exit status 2.
    Options = 2,
    /// The plugin panicked; the instance is poisoned.
    Panicked = 3,
    /// The instance panicked earlier and is not called again.
    Poisoned = 4,
    /// A KV manager has too few free slots.
    OutOfSlots = 5,
}

impl ErrorKind {
    /// Reads a code that crossed the border; unknown codes are [`ErrorKind::Failed`].
    pub fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Refused,
            2 => Self::Options,
            3 => Self::Panicked,
            4 => Self::Poisoned,
            5 => Self::OutOfSlots,
            _ => Self::Failed,
        }
    }
}

/// An error of a plugin or of the host.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the engine does about it.
    pub kind: ErrorKind,
    /// What failed, where, what was expected, how to mend it.
    pub message: String,
}

/// The result of every author-facing call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of the given kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// This call failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// The part cannot serve this engine or model.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Refused, message)
    }

    /// The options are wrong.
    pub fn options(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Options, message)
    }

    /// Too few free slots: `needed` against `free`.
    pub fn out_of_slots(needed: usize, free: usize) -> Self {
        Self::new(ErrorKind::OutOfSlots, format!("out of KV slots: {needed} needed, {free} free"))
    }
}

impl From<DraftError> for Error {
    fn from(error: DraftError) -> Self {
        Self::failed(error.to_string())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::failed(error.to_string())
    }
}

/// Why a guess was not taken into a draft. The draft stays as it was; a sequence whose draft had any of these but
/// [`DraftError::BudgetExhausted`] counts as a fault of the proposer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(i64)]
pub enum DraftError {
    /// The sequence's budget of nodes is used up: stop drafting for it.
    #[error("the draft budget of this sequence is used up")]
    BudgetExhausted = -1,
    /// The token is not below the target's vocabulary size.
    #[error("the drafted token is not in the target's vocabulary")]
    TokenOutOfVocabulary = -2,
    /// The parent is not a node of this draft.
    #[error("the parent is not a node pushed earlier in this draft")]
    NoSuchParent = -3,
    /// The index is not below the number of sequences of the batch.
    #[error("the batch has no sequence of that index")]
    NoSuchSequence = -4,
    /// A second child of one parent, where the proposer's needs said it drafts chains.
    #[error("this proposer declared chains but pushed a second child; set Needs::tree")]
    NotAChain = -5,
    /// A row of logits has the wrong length, a NaN, +inf, or no finite entry.
    #[error("the logits row to draw from is not a distribution over the target's vocabulary")]
    BadLogits = -6,
    /// A deterministic guess beside drawn ones under one parent, or the other way round.
    #[error("one parent's children must all be pushed or all be drawn")]
    MixedChildren = -7,
}

impl DraftError {
    /// Reads a negative code that crossed the border.
    pub fn from_code(code: i64) -> Self {
        match code {
            -1 => Self::BudgetExhausted,
            -2 => Self::TokenOutOfVocabulary,
            -3 => Self::NoSuchParent,
            -4 => Self::NoSuchSequence,
            -5 => Self::NotAChain,
            -7 => Self::MixedChildren,
            _ => Self::BadLogits,
        }
    }
}
