//! The `[qos]` table: lanes of service levels, and the lanes' shares of links (IBTA §7.6.6, §7.6.9).
//!
//! What the numbers may be is the plan's to say; here texts become numbers.

use everywire_net::fabric_host::plan::{DROPS, LaneTables, VlWeight};

use super::file::{QosFile, within};

/// The plan's tables.
pub fn lanes(file: &QosFile) -> Result<LaneTables, String> {
    let levels = file.sl2vl.len();
    let lanes: Vec<u8> =
        file.sl2vl.iter().map(|vl| within("qos.sl2vl", *vl, 0..=DROPS.into())).collect::<Result<_, _>>()?;
    let sl2vl = <[u8; 16]>::try_from(lanes.as_slice())
        .map_err(|_| format!("qos.sl2vl: {levels} lanes; 16 are needed, one for each service level"))?;
    let high = file.vlarb_high.as_deref().map(|text| weights("qos.vlarb_high", text)).transpose()?;
    let low = file.vlarb_low.as_deref().map(|text| weights("qos.vlarb_low", text)).transpose()?;
    let high_limit = within("qos.high_limit", file.high_limit.unwrap_or(0), 0..=255)?;
    Ok(LaneTables { sl2vl, high: high.unwrap_or_default(), low, high_limit })
}

/// `0:64,1:192`.
fn weights(key: &str, text: &str) -> Result<Vec<VlWeight>, String> {
    let entry = |part: &str| {
        let (vl, weight) = part.split_once(':')?;
        let (vl, weight) = (vl.trim().parse().ok()?, weight.trim().parse().ok()?);
        Some(VlWeight { vl, weight, ..VlWeight::default() })
    };
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| {
            entry(part).ok_or_else(|| {
                format!("{key}: {part:?} is no LANE:WEIGHT with a lane of 0 to 14 and a weight of 0 to 255, as in \"1:64\"")
            })
        })
        .collect()
}
