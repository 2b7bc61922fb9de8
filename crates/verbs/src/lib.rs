//! The safe verbs API and the driving contract, over every wire.
