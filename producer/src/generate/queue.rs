//! Things that wait for their place in the workload.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// The least place comes first; of equal places, who came first.
pub(super) struct Queue<T> {
    heap: BinaryHeap<Reverse<Waiting<T>>>,
    arrivals: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), arrivals: 0 }
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&mut self, due: u64, item: T) {
        self.arrivals += 1;
        self.heap.push(Reverse(Waiting { due, arrival: self.arrivals, item }));
    }

    /// The first one, if its place is `place` or before.
    pub(super) fn take_due(&mut self, place: u64) -> Option<T> {
        if self.heap.peek()?.0.due > place {
            return None;
        }
        self.heap.pop().map(|Reverse(first)| first.item)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}

struct Waiting<T> {
    due: u64,
    arrival: u64,
    item: T,
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.arrival).cmp(&(other.due, other.arrival))
    }
}
