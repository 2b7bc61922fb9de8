//! Start-ups of two ends against each other, and against frames of Linux siw.
