//! The future of a route: asked for when it is made, withdrawn when it is dropped.
//!
//! `route` has the requests and their answers.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::config::GidType;
use crate::device::Device;
use crate::route::{Asked, Asker, ROUTE_TIMEOUT, RouteError, RouteToken, Way};

/// Waits for a route. Dropped early, it withdraws the request.
pub(crate) struct Resolving {
    device: Device,
    token: Result<RouteToken, RouteError>,
}

impl Device {
    /// Asks for a route, from a GID of the type given and a LID with the path bits given, or the device's; the driver may take `limit` to answer, and never longer than
    /// [`ROUTE_TIMEOUT`].
    pub(crate) fn resolve(
        &self,
        dst: IpAddr,
        scope_id: u32,
        src: Option<IpAddr>,
        gid_type: Option<GidType>,
        path_bits: Option<u8>,
        limit: Option<Duration>,
    ) -> Resolving {
        let limit = limit.map_or(ROUTE_TIMEOUT, |limit| limit.min(ROUTE_TIMEOUT));
        let asker = Asker::Future { answer: None, waker: None, limit, due: None };
        let mut state = self.lock();
        let token = state.path_bits(path_bits).and_then(|path_bits| {
            state.ask_route(Asked { asker, dst, gid_type, path_bits, port: None }, scope_id, src)
        });
        drop(state);
        Resolving { device: self.clone(), token }
    }
}

impl Future for Resolving {
    type Output = Result<Way, RouteError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let token = match &self.token {
            Ok(token) => *token,
            Err(error) => return Poll::Ready(Err(error.clone())),
        };
        let mut state = self.device.lock();
        match state.routes.asker(token.0) {
            Some(Asker::Future { answer: Some(answer), .. }) => {
                let answer = answer.clone();
                state.routes.open.remove(&token.0);
                Poll::Ready(answer)
            }
            Some(Asker::Future { waker, .. }) => {
                let replaced = waker.replace(cx.waker().clone());
                state.discard(replaced);
                Poll::Pending
            }
            _ => Poll::Pending, // polled again after it was ready
        }
    }
}

impl Drop for Resolving {
    fn drop(&mut self) {
        if let Ok(token) = self.token {
            self.device.lock().withdraw_route(token);
        }
    }
}
