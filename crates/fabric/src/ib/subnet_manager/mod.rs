//! The subnet manager: it finds what is there, gives every port its LID and every switch its tables, and keeps them right.
//!
//! [`routing`] is the graph code, usable without any MAD.

pub mod routing;
