//! Management datagrams: agents on QP1.
