//! Where codecs put bytes of their own, kept from call to call and given back after a burst.

/// A room for each message of a batch, or for the one at hand, for its value to borrow from.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    all: Vec<Vec<u8>>,
    /// The capacity of all of them.
    held: usize,
    /// How much of it a batch took, the largest of late.
    needed: usize,
}

impl Rooms {
    /// More than this is kept only as long as batches need it.
    const KEPT: usize = 4 << 20;

    /// So many empty rooms, to be [taken back](Self::take_back).
    pub(super) fn lend(&mut self, messages: usize) -> &mut [Vec<u8>] {
        if self.all.len() < messages {
            self.all.resize_with(messages, Vec::new);
        }
        let rooms = &mut self.all[..messages];
        self.held -= rooms.iter().map(Vec::capacity).sum::<usize>();
        rooms
    }

    /// Empties those that were lent, and gives memory back some time after a burst. Without that, each
    /// would grow to the largest body there ever was.
    pub(super) fn take_back(&mut self, messages: usize) {
        let mut used = 0;
        for room in &mut self.all[..messages] {
            self.held += room.capacity();
            used += room.len();
            room.clear();
        }
        self.needed = used.max(self.needed - self.needed / 64);
        if self.held > Self::KEPT.max(4 * self.needed) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_kept_while_batches_need_them_and_given_back_after_a_burst() {
        let mut rooms = Rooms::default();
        let mut batch = |messages: usize, bytes: usize| {
            for room in rooms.lend(messages) {
                assert!(room.is_empty());
                room.resize(bytes, 0);
            }
            rooms.take_back(messages);
            let held = rooms.all.iter().map(Vec::capacity).sum::<usize>();
            assert_eq!(rooms.held, held);
            held
        };
        for _ in 0..2 {
            assert!(batch(100, 100) < 100 * 200, "small ones");
            assert!(
                batch(1, 100) >= 100 * 100,
                "a batch of one gives nothing back"
            );
        }
        for _ in 0..2 {
            assert!(batch(20, 1 << 20) >= 20 << 20, "steadily large");
            assert!(batch(1, 100) >= 20 << 20, "with small ones between");
        }
        let held = (0..200).map(|_| batch(20, 100)).last();
        assert!(
            held.is_some_and(|held| held <= Rooms::KEPT),
            "after the burst"
        );
    }
}
