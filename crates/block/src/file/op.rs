//! One request to the operating system, from submission to the waker of whoever waits for it.
//!
//! The engine holds its own `Arc` to the op until the kernel is done with the buffer, so a dropped future abandons the
//! result and never the memory.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Engine;
use crate::buffer::AlignedBuf;

/// What to do. Offsets and lengths in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    Read { offset: u64, len: usize },
    Write { offset: u64, len: usize, fua: bool },
    Sync,
    Fallocate { mode: u32, offset: u64, len: u64 },
}

/// Bytes moved, or the error number.
pub(super) type OsResult = Result<usize, i32>;

pub(super) struct Op {
    pub(super) request: Request,
    state: Mutex<State>,
}

struct State {
    buf: Option<AlignedBuf>,
    result: Option<OsResult>,
    waker: Option<Waker>,
}

impl Op {
    /// Submits `request` at once and returns a future of its result and its buffer.
    pub(super) fn run(engine: &Engine, request: Request, buf: Option<AlignedBuf>) -> Running {
        let state = State { buf, result: None, waker: None };
        let op = Arc::new(Self { request, state: Mutex::new(state) });
        engine.submit(op.clone());
        Running(op)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `with` use the buffer (empty if the request has none).
    pub(super) fn with_buf<R>(&self, with: impl FnOnce(&mut [u8]) -> R) -> R {
        match &mut self.state().buf {
            Some(buf) => with(buf),
            None => with(&mut []),
        }
    }

    /// Stores the result and wakes the waiter. The kernel no longer uses the buffer.
    pub(super) fn complete(&self, result: OsResult) {
        let waker = {
            let mut state = self.state();
            state.result = Some(result);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for an op.
pub(super) struct Running(Arc<Op>);

impl Future for Running {
    type Output = (OsResult, Option<AlignedBuf>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        match state.result.take() {
            Some(result) => Poll::Ready((result, state.buf.take())),
            None => {
                if state.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
                    state.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}
