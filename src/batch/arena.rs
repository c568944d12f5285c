//! The reused buffer that replies are received into.

use std::sync::Arc;

use parking_lot::Mutex;

/// Offsets into an arena are 32 bits wide.
const MAX_BYTES: usize = u32::MAX as usize;

/// A lane's receive buffer. Its bytes stay as the server sent them until it is cleared.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    filled: usize,
}

impl Arena {
    /// An arena of so many bytes. Untouched pages cost no memory.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            filled: 0,
        }
    }

    /// What has been received.
    pub(crate) fn received(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Room for more; empty when the arena is full.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Says that so many bytes were received into the [`room`](Self::room).
    pub(crate) fn filled(&mut self, n: usize) {
        self.filled += n;
        debug_assert!(self.filled <= self.bytes.len());
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Makes it at least so large. False when that is more than an arena can hold.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        if bytes > MAX_BYTES {
            return false;
        }
        if bytes > self.bytes.len() {
            // Fresh pages are zero as they come, where a larger vector would be filled with zeros.
            let mut grown = vec![0; bytes];
            grown[..self.filled].copy_from_slice(self.received());
            self.bytes = grown;
        }
        true
    }

    /// Forgets what was received behind the first `kept` bytes, as [`clear`](Self::clear) does.
    pub(crate) fn truncate(&mut self, kept: usize) {
        if cfg!(debug_assertions) {
            self.bytes[kept..self.filled].fill(POISON);
        }
        self.filled = kept;
    }

    /// Forgets what was received. In debug builds the old bytes are overwritten, so that a stale
    /// offset shows.
    pub(crate) fn clear(&mut self) {
        self.truncate(0);
    }

    /// Gives memory back after a burst: nothing may be held in it.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        debug_assert_eq!(self.filled, 0);
        if self.bytes.len() > bytes {
            self.bytes = vec![0; bytes];
        }
    }
}

/// What cleared bytes are overwritten with in debug builds.
const POISON: u8 = 0xDB;

/// The arenas of a consumer. Lanes that end leave theirs to lanes that begin.
#[derive(Clone, Debug)]
pub(crate) struct ArenaPool {
    spare: Arc<Mutex<Vec<Arena>>>,
    bytes: usize,
}

impl ArenaPool {
    /// A pool of arenas of so many bytes each.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            spare: Arc::default(),
            bytes,
        }
    }

    pub(crate) fn take(&self) -> Arena {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| Arena::with_capacity(self.bytes))
    }

    pub(crate) fn give_back(&self, mut arena: Arena) {
        arena.clear();
        arena.shrink_to(self.bytes);
        self.spare.lock().push(arena);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(a: &mut Arena, bytes: &[u8]) {
        a.room()[..bytes.len()].copy_from_slice(bytes);
        a.filled(bytes.len());
    }

    #[test]
    fn bytes_stay_as_received_while_it_grows() {
        let mut a = Arena::with_capacity(4);
        receive(&mut a, b"abcd");
        assert!(a.room().is_empty());
        assert!(a.grow_to(8));
        receive(&mut a, b"efgh");
        assert_eq!(a.received(), b"abcdefgh");
        assert!(!a.grow_to(MAX_BYTES + 1));
    }

    #[test]
    fn cleared_bytes_are_marked_in_debug_builds() {
        let mut a = Arena::with_capacity(4);
        receive(&mut a, b"abcd");
        a.clear();
        assert!(a.received().is_empty());
        assert_eq!(
            a.room(),
            if cfg!(debug_assertions) {
                [POISON; 4]
            } else {
                *b"abcd"
            }
        );
    }

    #[test]
    fn an_arena_given_back_is_used_again_at_its_old_size() {
        let pool = ArenaPool::new(16);
        let mut a = pool.take();
        a.grow_to(1000);
        receive(&mut a, b"x");
        pool.give_back(a);
        let a = pool.take();
        assert_eq!((a.capacity(), a.received().len()), (16, 0));
        assert!(pool.spare.lock().is_empty());
    }
}
