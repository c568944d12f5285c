//! How many entries to ask for: as many as the user allows, unless they are large.

/// The COUNT of a lane's reads. It starts small and follows the size of what is read, so that one reply
/// stays near the byte target: a reply of a hundred large entries costs the server as much memory as us.
#[derive(Clone, Debug)]
pub(crate) struct Sizing {
    count: u32,
    max: u32,
    target_bytes: usize,
}

/// What the first read of a lane asks for, before anything is known of the entries.
const FIRST: u32 = 16;

impl Sizing {
    pub(crate) fn new(max: u32, target_bytes: usize) -> Self {
        Self {
            count: FIRST.min(max),
            max,
            target_bytes,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Learns from a reply of so many entries and bytes.
    pub(crate) fn learn(&mut self, entries: u32, bytes: usize) {
        if entries == 0 {
            return;
        }
        let fits = (self.target_bytes as u64 * u64::from(entries) / bytes.max(1) as u64)
            .clamp(1, u64::from(self.max)) as u32;
        if fits < self.count {
            self.count = fits;
        } else if entries >= self.count {
            self.count = self.count.saturating_mul(2).min(fits);
        }
    }

    /// The last reply was too large to be taken whole. False when it was for one entry already.
    pub(crate) fn halve(&mut self) -> bool {
        let could = self.count > 1;
        self.count = (self.count / 2).max(1);
        could
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_grows_to_what_the_user_allows() {
        let mut s = Sizing::new(100, 256 * 1024);
        let mut counts = vec![s.count()];
        for _ in 0..4 {
            s.learn(s.count(), s.count() as usize * 200);
            counts.push(s.count());
        }
        assert_eq!(counts, [16, 32, 64, 100, 100]);
        assert_eq!(Sizing::new(5, 1).count(), 5);
    }

    #[test]
    fn large_entries_lower_it_at_once_and_a_quiet_stream_leaves_it_alone() {
        let mut s = Sizing::new(1000, 256 * 1024);
        s.learn(16, 16 * 5_000_000);
        assert_eq!(s.count(), 1);
        s.learn(1, 5_000_000);
        assert_eq!(s.count(), 1);
        s.learn(1, 1000);
        assert_eq!(s.count(), 2, "small again: it grows again");
        let mut quiet = Sizing::new(1000, 256 * 1024);
        quiet.learn(0, 5);
        quiet.learn(3, 600);
        assert_eq!(quiet.count(), FIRST);
    }

    #[test]
    fn a_refused_reply_halves_it_down_to_one() {
        let mut s = Sizing::new(100, 1 << 20);
        let tries: Vec<_> = (0..6).map(|_| (s.halve(), s.count())).collect();
        assert_eq!(tries[..4], [(true, 8), (true, 4), (true, 2), (true, 1)]);
        assert_eq!(tries[4..], [(false, 1), (false, 1)]);
    }
}
