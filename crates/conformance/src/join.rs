//! Two things that go on at once, on one thread.

use std::future::Future;
use std::task::Poll;

/// Both, at once. An error ends it: what belongs to the one that failed never comes to the other.
pub(crate) async fn both<A, B>(
    a: impl Future<Output = Result<A, String>>,
    b: impl Future<Output = Result<B, String>>,
) -> Result<(A, B), String> {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut got_a, mut got_b) = (None, None);
    std::future::poll_fn(|cx| {
        if got_a.is_none()
            && let Poll::Ready(done) = a.as_mut().poll(cx)
        {
            match done {
                Ok(value) => got_a = Some(value),
                Err(why) => return Poll::Ready(Err(why)),
            }
        }
        if got_b.is_none()
            && let Poll::Ready(done) = b.as_mut().poll(cx)
        {
            match done {
                Ok(value) => got_b = Some(value),
                Err(why) => return Poll::Ready(Err(why)),
            }
        }
        match (got_a.take(), got_b.take()) {
            (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
            (a, b) => {
                (got_a, got_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

/// Both, at once.
pub(crate) async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut got_a, mut got_b) = (None, None);
    std::future::poll_fn(|cx| {
        if got_a.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            got_a = Some(value);
        }
        if got_b.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            got_b = Some(value);
        }
        match (got_a.take(), got_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (got_a, got_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}
