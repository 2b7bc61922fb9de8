//! How a key stops opening anything. Afterwards it opens nothing to the peer that knew it.
//!
//! Read IBTA vol. 1 §10.6.5 (invalidation) and §10.6.7.2.6 (windows) first.

use everywire_verbs::{Access, QpType, RecvWr, Remote, SendOp, SendWr, WcStatus};

use super::{Key, OPEN_AT, Via, local_operation, no_access, open, through};
use crate::check::{Verdict, same};
use crate::link::{Ctx, Link, LinkOptions, brief};
use crate::transfer::{Kind, ensure_last_write_is_there};

/// A way for a key to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// LOCAL_INV by its owner.
    LocalInvalidate,
    /// SEND with Invalidate by the peer.
    RemoteInvalidate,
    /// The object goes.
    Dropped,
    /// A window: the region behind it goes.
    RegionDropped,
    /// A type 1 window: bound with length zero.
    BoundToNothing,
    /// A type 1 window: bound elsewhere, under a new key.
    BoundAgain,
}

/// Which kinds of key end in which ways.
pub(crate) const ENDINGS: &[(Via, Ending)] = {
    use Ending::*;
    &[
        (Via::Region, Dropped),
        (Via::Fast, LocalInvalidate),
        (Via::Fast, RemoteInvalidate),
        (Via::Fast, Dropped),
        (Via::Window1, BoundToNothing),
        (Via::Window1, BoundAgain),
        (Via::Window1, Dropped),
        (Via::Window1, RegionDropped),
        (Via::Window2, LocalInvalidate),
        (Via::Window2, RemoteInvalidate),
        (Via::Window2, Dropped),
        (Via::Window2, RegionDropped),
    ]
};

/// Uses a key, ends it, and uses it again.
pub(crate) async fn ending(ctx: &Ctx, via: Via, ending: Ending) -> Verdict {
    let link = Link::new(ctx, &LinkOptions::new(QpType::Rc)).await?;
    let mut key = open(ctx, &link.b, via, Access::REMOTE_WRITE).await?;
    let remote = Remote { addr: key.addr, rkey: key.rkey };
    link.a.post_send(through(&link, Kind::Write, remote, 8))?;
    same!(brief(&link.a.sent(ctx, 1).await?), [(1, WcStatus::Success)], "a WRITE through the living key");
    ensure_last_write_is_there(ctx, &link).await?;
    end(ctx, &link, &mut key, ending).await?;
    link.a.post_send(through(&link, Kind::Write, remote, 8))?;
    no_access(ctx, &link, Kind::Write).await
}

async fn end(ctx: &Ctx, link: &Link, key: &mut Key, ending: Ending) -> Verdict {
    match ending {
        Ending::LocalInvalidate => local_operation(ctx, &link.b, SendOp::LocalInv(key.rkey)).await,
        Ending::RemoteInvalidate => {
            link.b.post_recv(RecvWr::new(11, []))?;
            link.a.post_send(SendWr::new(2, SendOp::SendInv(key.rkey)))?;
            let received = link.b.received(ctx, 1).await?;
            same!(received[0].invalidated, Some(key.rkey), "the key that the receive names");
            same!(brief(&link.a.sent(ctx, 1).await?), [(2, WcStatus::Success)], "SEND with Invalidate");
            Ok(())
        }
        Ending::Dropped => {
            (key.fast, key.window, key.region) = (None, None, None);
            Ok(())
        }
        Ending::RegionDropped => {
            key.memory = link.b.mr().clone();
            Ok(())
        }
        Ending::BoundToNothing | Ending::BoundAgain => {
            let Some(window) = &key.window else { return Err(String::from("no window")) };
            let length = if ending == Ending::BoundAgain { 32 } else { 0 };
            let bind = window.bind(&key.memory, OPEN_AT, length, Access::REMOTE_WRITE);
            local_operation(ctx, &link.b, SendOp::BindMw(bind)).await?;
            if ending == Ending::BoundAgain {
                let remote = Remote { addr: key.addr, rkey: bind.new_rkey };
                link.a.post_send(through(link, Kind::Write, remote, 8))?;
                let done = brief(&link.a.sent(ctx, 1).await?);
                same!(done, [(1, WcStatus::Success)], "a WRITE through the new key");
                ensure_last_write_is_there(ctx, link).await?;
            }
            Ok(())
        }
    }
}
