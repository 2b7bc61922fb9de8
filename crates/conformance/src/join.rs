//! Two things that go on at once, on one thread.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Both, at once. An error ends it: what belongs to the one that failed never comes to the other.
pub(crate) async fn both<A, B, E>(
    a: impl Future<Output = Result<A, E>>,
    b: impl Future<Output = Result<B, E>>,
) -> Result<(A, B), E> {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut got_a, mut got_b) = (None, None);
    std::future::poll_fn(|cx| {
        if let Err(why) =
            advance(a.as_mut(), &mut got_a, cx).and_then(|()| advance(b.as_mut(), &mut got_b, cx))
        {
            return Poll::Ready(Err(why));
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

/// Polls what has not come yet.
fn advance<T, E>(
    future: Pin<&mut impl Future<Output = Result<T, E>>>,
    got: &mut Option<T>,
    cx: &mut Context<'_>,
) -> Result<(), E> {
    if got.is_none()
        && let Poll::Ready(done) = future.poll(cx)
    {
        *got = Some(done?);
    }
    Ok(())
}

/// Both, at once.
pub(crate) async fn join<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let Ok(got) = both::<_, _, Infallible>(async { Ok(a.await) }, async { Ok(b.await) }).await;
    got
}
