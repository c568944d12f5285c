//! Unsigned decimals in bytes, both ways, without allocating.

/// Digits of the longest `u64`.
pub(super) const DIGITS_MAX: usize = 20;

/// The number that all of `text` spells. Digits only, at least one; leading zeros are accepted.
pub(super) fn parse(text: &[u8]) -> Option<u64> {
    // up to 19 digits cannot overflow, which leaves the loop without a branch for it
    let (head, tail) = text.split_at(text.len().min(DIGITS_MAX - 1));
    let mut n = 0u64;
    let mut valid = !text.is_empty();
    for b in head {
        let digit = b.wrapping_sub(b'0');
        valid &= digit < 10;
        n = n.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    if !valid {
        return None;
    }
    tail.iter().try_fold(n, |n, b| {
        let digit = b.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        n.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// How many digits `n` has.
pub(super) fn width(n: u64) -> usize {
    n.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Writes `n` at `buf[at..]` and returns where it ends.
///
/// # Panics
///
/// When the buffer is too short.
pub(super) fn write(buf: &mut [u8], at: usize, mut n: u64) -> usize {
    let end = at + width(n);
    for slot in buf[at..end].iter_mut().rev() {
        *slot = b'0' + (n % 10) as u8;
        n /= 10;
    }
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_whole_numbers_of_64_bits_are_read() {
        for (text, n) in [
            ("0", 0),
            ("7", 7),
            ("007", 7),
            ("0000000000000000000000000000007", 7),
            ("18446744073709551615", u64::MAX),
            ("0018446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(n), "{text}");
        }
        for text in [
            "",
            " 1",
            "1 ",
            "+1",
            "-1",
            "1.0",
            "1e3",
            "0x1",
            "18446744073709551616",
            "99999999999999999999",
            "100000000000000000000000000000",
            "/",
            ":",
            "١",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn numbers_round_trip(n in any::<u64>(), shift in 0u32..64) {
            let n = n >> shift;
            let mut buf = [b'x'; DIGITS_MAX + 1];
            let end = write(&mut buf, 1, n);
            let text = n.to_string();
            prop_assert_eq!(&buf[1..end], text.as_bytes());
            prop_assert_eq!(buf[0], b'x');
            prop_assert_eq!(width(n), text.len());
            prop_assert_eq!(parse(&buf[1..end]), Some(n));
        }

        #[test]
        fn any_text_is_read_as_the_standard_library_reads_it(text in "[0-9]{0,24}|[+0-9a-]{0,4}") {
            let plain = text.bytes().all(|b| b.is_ascii_digit());
            let expected = text.parse::<u64>().ok().filter(|_| plain);
            prop_assert_eq!(parse(text.as_bytes()), expected);
        }
    }
}
