//! Unsigned decimals in bytes, both ways, without allocating.

/// Digits of the longest `u64`.
pub(super) const DIGITS_MAX: usize = 20;

/// The number `text` begins with, and what follows its last digit. At least one digit; leading
/// zeros are accepted; `None` beyond 64 bits.
#[inline]
pub(super) fn split(text: &[u8]) -> Option<(u64, &[u8])> {
    if text.len() < DIGITS_MAX {
        // too short for a number beyond 64 bits
        split_with(text, |n, scale, more| Some(n.wrapping_mul(scale) + more))
    } else {
        split_with(text, |n, scale, more| {
            n.checked_mul(scale)?.checked_add(more)
        })
    }
}

/// `join` appends digits: what was read so far, what it is to be multiplied with, what is to be added.
#[inline]
fn split_with(text: &[u8], join: impl Fn(u64, u64, u64) -> Option<u64>) -> Option<(u64, &[u8])> {
    let (mut n, mut rest) = (0u64, text);
    while let Some(head) = rest.first_chunk() {
        let (count, value) = leading_digits(*head);
        n = join(n, POWERS[count], value)?;
        rest = &rest[count..];
        if count < head.len() {
            return (rest.len() < text.len()).then_some((n, rest));
        }
    }
    while let [digit @ b'0'..=b'9', tail @ ..] = rest {
        n = join(n, 10, u64::from(digit - b'0'))?;
        rest = tail;
    }
    (rest.len() < text.len()).then_some((n, rest))
}

/// The number that all of `text` spells, by the rules of [`split`].
#[inline]
pub(crate) fn parse(text: &[u8]) -> Option<u64> {
    let (n, rest) = split(text)?;
    rest.is_empty().then_some(n)
}

/// The powers of ten that up to eight digits are worth.
const POWERS: [u64; 9] = {
    let mut powers = [1; 9];
    let mut i = 1;
    while i < powers.len() {
        powers[i] = 10 * powers[i - 1];
        i += 1;
    }
    powers
};

/// How many digits these bytes begin with, and their number, found for all at once: neighbouring
/// digits are [`joined`] to pairs, then to fours, then to one number.
#[inline]
fn leading_digits(text: [u8; 8]) -> (usize, u64) {
    let n = values(text);
    let count = others(n).trailing_zeros() / 8;
    // zeros in front instead of what follows the digits
    let n = n.checked_shl(64 - 8 * count).unwrap_or(0);
    (count as usize, joined(n))
}

/// The number that the last `digits` bytes spell, of which there are one to eight.
#[inline]
fn last_digits(text: [u8; 8], digits: usize) -> Option<u64> {
    let others_bits = 64 - 8 * digits as u32;
    // zeros in front instead of what comes before the digits
    let n = values(text) >> others_bits << others_bits;
    (others(n) == 0).then(|| joined(n))
}

const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// What each byte is worth as a digit, and above 9 if it is none.
#[inline]
fn values(text: [u8; 8]) -> u64 {
    u64::from_le_bytes(text) ^ each(b'0')
}

/// The top bits of the bytes above 9, and maybe of some after the first of them.
#[inline]
fn others(values: u64) -> u64 {
    // a byte above 9 has its top bit set, or gets it by adding 0x76; what carries over to the bytes
    // after it does not matter any more
    (values | values.wrapping_add(each(0x76))) & each(0x80)
}

/// The number of eight digits.
#[inline]
fn joined(n: u64) -> u64 {
    let n = (n * 10 + (n >> 8)) & 0x00ff_00ff_00ff_00ff;
    let n = (n * 100 + (n >> 16)) & 0x0000_ffff_0000_ffff;
    (n * 10_000 + (n >> 32)) & 0xffff_ffff
}

/// Digits of a time in milliseconds between 2001 and 2286.
const TIME: usize = 13;

/// The two numbers of an id as servers give it out today: a time of 13 digits, `-`, and up to eight
/// digits. Nothing for any other.
#[inline]
pub(super) fn usual_id(text: &[u8]) -> Option<(u64, u64)> {
    let digits = text.len().checked_sub(TIME + 1)?;
    if !(1..=8).contains(&digits) || text[TIME] != b'-' {
        return None;
    }
    let (head, tail) = (text.first_chunk()?, text[..TIME].last_chunk()?);
    let (first, last) = (last_digits(*head, 8)?, last_digits(*tail, TIME - 8)?);
    let seq = last_digits(*text.last_chunk()?, digits)?;
    Some((first * POWERS[TIME - 8] + last, seq))
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
            "1234567/",
            "1234567:",
            "1234567\u{b0}",
            "12345678-",
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
        fn a_number_ends_at_the_first_byte_that_is_no_digit(n: u64, zeros in 0usize..20, rest: Vec<u8>) {
            let rest = &rest[rest.iter().take_while(|b| b.is_ascii_digit()).count()..];
            let text = [format!("{}{n}", "0".repeat(zeros)).as_bytes(), rest].concat();
            prop_assert_eq!(split(&text), Some((n, rest)));
            prop_assert_eq!(split(rest), None);
        }

        #[test]
        fn the_quick_way_reads_ids_as_the_thorough_one(text in "[0-9]{12,14}[-.0][0-9]{0,9}|[0-9]{13}-[0-9/:-]{1,3}") {
            let halves = text.split_once('-').filter(|(ms, seq)| ms.len() == TIME && seq.len() <= 8);
            let expected = halves.and_then(|(ms, seq)| {
                Some((parse(ms.as_bytes())?, parse(seq.as_bytes())?))
            });
            prop_assert_eq!(usual_id(text.as_bytes()), expected);
        }

        #[test]
        fn any_text_is_read_as_the_standard_library_reads_it(text in "[0-9]{0,24}|[+0-9a-]{0,4}") {
            let plain = text.bytes().all(|b| b.is_ascii_digit());
            let expected = text.parse::<u64>().ok().filter(|_| plain);
            prop_assert_eq!(parse(text.as_bytes()), expected);
        }
    }
}
