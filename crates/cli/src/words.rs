//! Words that follow numbers.

/// A number and what is counted, `ending` added where that is not one: `1 turn`, `2 switches`.
pub fn count(number: usize, what: &str, ending: &str) -> String {
    let ending = if number == 1 { "" } else { ending };
    format!("{number} {what}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_none_of_many() {
        assert_eq!([0, 1, 2].map(|n| count(n, "switch", "es")), ["0 switches", "1 switch", "2 switches"]);
    }
}
