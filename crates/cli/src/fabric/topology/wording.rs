//! What is wrong with a topology file, in the file's own words: its line, the key, what stands there, and what may.
//!
//! The TOML reader speaks of Rust's types where a value is of the wrong kind. What it says about grammar (a quote or bracket
//! that is missing) stays as it is, with the line it shows.

use everywire_net::fabric_host::plan::{
    MAX_DELAY, MAX_HOST_PORTS, MAX_LMC, MAX_PPM, MAX_ROUTER_PORTS, MAX_SL, MAX_SM_PRIORITY, MAX_SWITCH_PORTS,
};

/// Characters of a value that are shown.
const MAX_VALUE: usize = 60;

/// The number of the line at this place of the text.
pub fn line_at(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|byte| *byte == b'\n').count()
}

/// The error in words.
pub fn told(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().next().unwrap_or_default();
    let Some(span) = error.span().filter(|span| text.get(span.clone()).is_some()) else {
        return message.to_owned();
    };
    let line = line_at(text, span.start);
    let quoted = message.split('`').nth(1).unwrap_or_default();
    let choice = || message.split_once("expected ").map_or("none", |(_, list)| list).replace('`', "");
    let choice = || choice().trim_start_matches("one of ").to_owned();
    let (table, key) = (table_at(text, span.start), key_at(text, span.start));
    if message.starts_with("unknown field") {
        let place = table.map_or_else(String::new, |table| format!(" of [{table}]"));
        return format!("line {line}: {quoted:?} is no key{place}; the keys there are {}", choice());
    }
    let full = |key: &str| table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}"));
    if message.starts_with("missing field") {
        let place = if text[span.start..].starts_with('[') { table.unwrap_or_default() } else { &full(&key) };
        let wanted = wanted(&format!("{place}.{quoted}"));
        return format!("line {line}: {place} needs the key {quoted:?}: {wanted}");
    }
    let of_serde = ["unknown variant", "invalid ", "data did not match", "wanted "];
    let of_a_value = ["invalid type", "invalid value", "invalid length", "invalid IP address"];
    let is_grammar =
        message.starts_with("invalid ") && !of_a_value.iter().any(|start| message.starts_with(start));
    if is_grammar || !of_serde.iter().any(|start| message.starts_with(start)) {
        return error.to_string();
    }
    let key = if text[span.start..].starts_with('[') && key.is_empty() { String::new() } else { key };
    let key = match (key.as_str(), table) {
        ("", Some(table)) => table.to_owned(),
        (key, _) => full(key),
    };
    let mut value = text[span].lines().next().unwrap_or_default().trim().to_owned();
    if let Some((end, _)) = value.char_indices().nth(MAX_VALUE) {
        value.replace_range(end.., "…");
    }
    format!("line {line}: {key}: {value} is not what may stand there: {}", wanted(&key))
}

/// The table whose header was the last before this place, or is there.
fn table_at(text: &str, place: usize) -> Option<&str> {
    let end = text[place..].find('\n').map_or(text.len(), |len| place + len);
    let header = text[..end].lines().rev().map(str::trim).find(|line| line.starts_with('['))?;
    Some(header.trim_start_matches('[').split(']').next().unwrap_or_default().trim())
}

/// The key whose value is at this place, with that of the inline table around it.
fn key_at(text: &str, place: usize) -> String {
    let is_key = |line: &&str| line.contains('=') && !line.trim_start().starts_with('#');
    let start = text[..place].rfind('\n').map_or(0, |at| at + 1);
    let own = &text[start..place];
    if own.trim().is_empty() && text[place..].starts_with('[') {
        return String::new();
    }
    // Of a list over several lines, the key is further up.
    let line =
        Some(own).filter(is_key).or_else(|| text[..start].lines().rev().find(is_key)).unwrap_or_default();
    let word =
        |part: &str| part.rsplit(['{', ',', ' ', '\t']).find(|word| !word.is_empty()).map(str::to_owned);
    let parts: Vec<&str> = line.split('=').collect();
    let (outer, inner) =
        (parts[0].trim(), parts.get(parts.len().wrapping_sub(2)).and_then(|part| word(part)));
    match inner {
        Some(inner) if line.contains('{') && inner != outer => format!("{outer}.{inner}"),
        Some(inner) => inner,
        None => outer.to_owned(),
    }
}

/// What may stand at a key.
fn wanted(key: &str) -> String {
    let (table, last) = key.rsplit_once('.').unwrap_or(("", key));
    let number = |most: u32| format!("a whole number from 0 to {most}");
    let text = match last {
        "name" => "a name in quotes, as in \"h1\"",
        "sm" => "a host's port or a switch in quotes, as in \"h1/1\"",
        "sm_key" => "up to 16 hexadecimal digits after 0x, in quotes, as in \"0x1\"",
        "gid_prefix" => "16 hexadecimal digits after 0x, in quotes, as in \"0xfec0000000000001\"",
        "guid" => "16 hexadecimal digits in quotes, as in \"0x0002c90300000001\"",
        "ip" => "an IP address in quotes, or a list with one a port, as in [\"192.0.2.1\", \"2001:db8::1\"]",
        "engine" => "\"minhop\", \"updn\" or \"ftree\"",
        "layout" => "\"levels\", \"circle\" or { grid = { columns = 4 } }",
        "roots" => "a list of switches, as in [\"s1\"]",
        "links" => "a list of cables, as in [\"h1/1 - s1/3\"]",
        "ends" => "a list of two ports, as in [\"h1/1\", \"s1/3\"]",
        "full" | "limited" => "a list of hosts' ports, as in [\"h1/1\"]",
        "rate" => "1x, 4x, 8x or 12x of SDR, DDR, QDR, FDR, EDR or HDR in quotes, as in \"4xQDR\"",
        "mtu" => "256, 512, 1024, 2048 or 4096",
        "vls" => "1, 2, 4, 8 or 15",
        "retry" => "true or false",
        "pkey" => "a number from 0x0001 to 0x7ffe",
        "hosts" | "switches" | "columns" | "rows" | "hosts_per_switch" | "radix" => "a whole number",
        "fat_tree" => "{ hosts = 16, radix = 8 }",
        "ring" => "{ switches = 6, hosts_per_switch = 2 }",
        "torus" => "{ columns = 4, rows = 4, hosts_per_switch = 1 }",
        "grid" => "{ columns = 4 }",
        "generate" => "one of fat_tree, ring and torus, as in fat_tree = { hosts = 16, radix = 8 }",
        "defaults" => "a table of what links are like, [defaults]",
        "host" | "switch" | "router" | "subnet" | "link" | "partition" => {
            return format!("tables, each with the header [[{last}]]");
        }
        "ports" => {
            let most = match table {
                "host" => MAX_HOST_PORTS,
                "router" => MAX_ROUTER_PORTS,
                _ => MAX_SWITCH_PORTS,
            };
            return format!("a whole number from 1 to {most}");
        }
        "delay_us" => return format!("a number from 0 to {}", MAX_DELAY.as_micros()),
        "bit_errors_ppm" => return number(MAX_PPM),
        "sm_priority" => return number(MAX_SM_PRIORITY.into()),
        "lmc" => return number(MAX_LMC.into()),
        "sl" => return number(MAX_SL.into()),
        _ => "see examples/written-out.toml, which has every key",
    };
    text.to_owned()
}
