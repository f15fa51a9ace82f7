//! Words that only atomics change: does every value say that each of them happened at most once, and in order? The
//! values are chosen so that a word shows its own history. Each fetch-and-add on a word adds its own power of four: a
//! digit 1 says that it has happened, a digit 2 that it happened twice. Each compare-and-swap puts a value that nobody
//! else puts: the values that a word has had form a path, and two ways out of one value mean that a swap happened
//! twice. Whether a request that ended without an answer has happened is not known, until some value shows it.

/// A word under watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordNumber(pub usize);

/// What an atomic does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Adds what [`Judge::next_addend`](super::Judge::next_addend) returned.
    FetchAndAdd {
        /// What to add.
        add: u64,
    },
    /// Puts `swap` in place of `compare`.
    CompareAndSwap {
        /// The value that must be there.
        compare: u64,
        /// A value that no other request puts.
        swap: u64,
    },
}

/// Which atomics may be used on a word; the other would spoil its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordUse {
    /// Fetch-and-add only.
    Add,
    /// Compare-and-swap only.
    Swap,
}

/// A value that the history does not explain: what was expected, and what was found.
pub(super) type Unexplained = (String, String);

/// Requests that a word takes in its life: a word has this many digits of two bits.
pub(super) const OPERATIONS_MAX: usize = 32;

/// The history of a word.
pub(super) enum History {
    Add(AddHistory),
    Swap(SwapHistory),
}

impl History {
    pub(super) fn new(word_use: WordUse, initial: u64) -> Self {
        match word_use {
            WordUse::Add => History::Add(AddHistory { initial, ..AddHistory::default() }),
            WordUse::Swap => History::Swap(SwapHistory { path: vec![initial], operations: Vec::new() }),
        }
    }

    pub(super) fn operation_count(&self) -> usize {
        match self {
            History::Add(history) => history.operations.len(),
            History::Swap(history) => history.operations.len(),
        }
    }

    /// A request was posted. `connection` is the same for requests that must happen in the order of their posting.
    pub(super) fn posted(&mut self, atomic: Atomic, connection: u64) -> usize {
        match (self, atomic) {
            (History::Add(history), Atomic::FetchAndAdd { .. }) => history.posted(connection),
            (History::Swap(history), Atomic::CompareAndSwap { compare, swap }) => {
                history.posted(compare, swap, connection)
            }
            _ => panic!("the program uses each word for one kind of atomic"),
        }
    }

    /// A request succeeded, and this is the old value that it brought.
    pub(super) fn succeeded(&mut self, operation: usize, old: u64) -> Result<(), Unexplained> {
        match self {
            History::Add(history) => history.succeeded(operation, old),
            History::Swap(history) => history.succeeded(operation, old),
        }
    }

    /// The word holds this value now.
    pub(super) fn holds(&mut self, value: u64) -> Result<(), Unexplained> {
        match self {
            History::Add(history) => history.holds(value),
            History::Swap(history) => history.holds(value),
        }
    }

    /// If a request has not happened by now, as far as `holds` knows, it never will.
    pub(super) fn cannot_happen_later(&mut self, operation: usize) {
        match self {
            History::Add(history) => history.dead |= digit(operation) & !history.certain,
            History::Swap(history) => history.operations[operation].may_happen = false,
        }
    }

    /// The last value that is known.
    pub(super) fn latest(&self) -> u64 {
        match self {
            History::Add(history) => history.initial.wrapping_add(history.certain),
            History::Swap(history) => history.path.last().copied().unwrap_or_default(),
        }
    }
}

/// The digit of a request.
pub(super) fn digit(operation: usize) -> u64 {
    1 << (2 * operation)
}

struct Addition {
    /// What had happened for certain when it was posted.
    before: u64,
    /// The digit of the request before it on its connection.
    previous: u64,
    connection: u64,
}

/// What is known of a word that requests add to. Sets of requests are sums of their digits.
#[derive(Default)]
pub(super) struct AddHistory {
    initial: u64,
    operations: Vec<Addition>,
    /// Requests that have happened.
    certain: u64,
    /// Requests that have not, and never will.
    dead: u64,
    /// Every set that the word is known to have held, with the digit of the request that brought it (0: somebody
    /// looked). Each is part of the next one.
    held: Vec<(u64, u64)>,
}

impl AddHistory {
    fn posted(&mut self, connection: u64) -> usize {
        let operation = self.operations.len();
        assert!(operation < OPERATIONS_MAX, "a word takes no more requests than it has digits");
        let previous = self.operations.iter().rposition(|other| other.connection == connection);
        let before = self.certain;
        self.operations.push(Addition { before, previous: previous.map_or(0, digit), connection });
        operation
    }

    /// The set of requests that a value stands for.
    fn set_of(&self, value: u64) -> Result<u64, Unexplained> {
        let set = value.wrapping_sub(self.initial);
        for operation in 0..OPERATIONS_MAX {
            let times = set >> (2 * operation) & 3;
            let explained = match self.operations.get(operation) {
                None => times == 0,
                Some(_) if self.dead & digit(operation) != 0 => times == 0,
                Some(addition) => times == 0 || times == 1 && set & addition.previous == addition.previous,
            };
            if !explained {
                let expected = match self.operations.get(operation) {
                    None => "only additions that were posted",
                    Some(_) if times > 1 => "each addition once",
                    Some(_) if self.dead & digit(operation) != 0 => "no addition after its connection was reset",
                    Some(_) => "the additions of a connection in order",
                };
                return Err((expected.into(), format!("{value:#x}: addition {operation} of this word {times} times")));
            }
        }
        Ok(set)
    }

    /// The word held this set before the request with digit `own` (0: somebody looked).
    fn note(&mut self, set: u64, own: u64, value: u64) -> Result<(), Unexplained> {
        let rank = |held: &(u64, u64)| (held.0.count_ones(), held.1 != 0);
        let index = self.held.partition_point(|held| rank(held) <= rank(&(set, own)));
        let follows = index.checked_sub(1).is_none_or(|before| {
            let (set_before, own_before) = self.held[before];
            (set_before | own_before) & !set == 0
        });
        let precedes = self.held.get(index).is_none_or(|(after, _)| (set | own) & !after == 0);
        if !follows || !precedes {
            let expected = "values that fit into one order of the additions";
            return Err((expected.into(), format!("{value:#x}, which does not fit to the values seen before")));
        }
        self.held.insert(index, (set, own));
        self.certain |= set | own;
        Ok(())
    }

    fn succeeded(&mut self, operation: usize, old: u64) -> Result<(), Unexplained> {
        let set = self.set_of(old)?;
        let own = digit(operation);
        let Addition { before, previous, .. } = self.operations[operation];
        if set & own != 0 {
            let got = format!("{old:#x}: it has happened before it happened");
            return Err((format!("addition {operation} of this word once"), got));
        }
        if (before | previous) & !set != 0 {
            let expected = format!("all additions that are known to be before it: {:#x}", before | previous);
            return Err((expected, format!("{old:#x}, without some of them")));
        }
        self.note(set, own, old)
    }

    fn holds(&mut self, value: u64) -> Result<(), Unexplained> {
        let set = self.set_of(value)?;
        if self.certain & !set != 0 {
            let expected = format!("all additions that have happened: {:#x}", self.latest());
            return Err((expected, format!("{value:#x}, without some of them")));
        }
        let is_new = self.held.iter().all(|held| *held != (set, 0));
        if is_new { self.note(set, 0, value) } else { Ok(()) }
    }

    fn latest(&self) -> u64 {
        self.initial.wrapping_add(self.certain)
    }
}

struct Swap {
    compare: u64,
    swap: u64,
    connection: u64,
    /// It found a value at this place of the path or later.
    after: usize,
    has_happened: bool,
    may_happen: bool,
}

/// What is known of a word that requests swap: the values it has had, in order. No value comes twice.
pub(super) struct SwapHistory {
    path: Vec<u64>,
    operations: Vec<Swap>,
}

impl SwapHistory {
    fn posted(&mut self, compare: u64, swap: u64, connection: u64) -> usize {
        let after = self.path.len() - 1;
        self.operations.push(Swap { compare, swap, connection, after, has_happened: false, may_happen: true });
        self.operations.len() - 1
    }

    /// Where on the path a value stands. If it is not there yet, requests that may have happened must lead to it.
    fn find(&mut self, value: u64) -> Result<usize, Unexplained> {
        let on_path = |path: &[u64], value: u64| path.iter().position(|other| *other == value);
        if let Some(index) = on_path(&self.path, value) {
            return Ok(index);
        }
        let mut way = Vec::new();
        let mut at = value;
        let origin = loop {
            let step = self.operations.iter().position(|operation| operation.swap == at && operation.may_happen);
            let (Some(step), true) = (step, way.len() <= self.operations.len()) else {
                return Err(("a value that some request may have put".into(), format!("{value:#x}")));
            };
            way.push(step);
            at = self.operations[step].compare;
            if let Some(origin) = on_path(&self.path, at) {
                break origin;
            }
        };
        if origin + 1 != self.path.len() {
            let expected = format!("{:#x} after {at:#x}, as was seen before", self.path[origin + 1]);
            return Err((expected, format!("{:#x} after it too", self.operations[way[way.len() - 1]].swap)));
        }
        for step in way.into_iter().rev() {
            self.operations[step].has_happened = true;
            self.path.push(self.operations[step].swap);
        }
        Ok(self.path.len() - 1)
    }

    fn succeeded(&mut self, operation: usize, old: u64) -> Result<(), Unexplained> {
        let index = self.find(old)?;
        let Swap { compare, swap, connection, after, has_happened, .. } = self.operations[operation];
        let earlier = self.operations[..operation].iter().filter(|other| other.connection == connection);
        let after = earlier.map(|other| other.after).max().unwrap_or(0).max(after);
        if index < after {
            let expected = format!("{:#x} or a later value", self.path[after]);
            return Err((expected, format!("the older {old:#x}")));
        }
        if old != compare {
            self.operations[operation].may_happen = false;
            self.operations[operation].after = index;
            let got = format!("{old:#x}, and yet the word has had {swap:#x}");
            return if has_happened { Err((format!("{compare:#x} from a swap that happened"), got)) } else { Ok(()) };
        }
        match self.path.get(index + 1) {
            Some(next) if *next != swap => {
                let got = format!("{swap:#x} after it too");
                return Err((format!("{next:#x} after {old:#x}, as was seen before"), got));
            }
            Some(_) => {}
            None => self.path.push(swap),
        }
        self.operations[operation].has_happened = true;
        self.operations[operation].after = index + 1;
        Ok(())
    }

    fn holds(&mut self, value: u64) -> Result<(), Unexplained> {
        let index = self.find(value)?;
        if index + 1 != self.path.len() {
            let expected = format!("{:#x} or a later value", self.path[self.path.len() - 1]);
            return Err((expected, format!("the older {value:#x}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0xaaaa_0000_0000_0000;

    fn adds(connections: &[u64]) -> History {
        let mut history = History::new(WordUse::Add, START);
        for (operation, connection) in connections.iter().enumerate() {
            history.posted(Atomic::FetchAndAdd { add: digit(operation) }, *connection);
        }
        history
    }

    fn value(operations: &[usize]) -> u64 {
        operations.iter().fold(START, |value, operation| value.wrapping_add(digit(*operation)))
    }

    #[test]
    fn additions_in_some_order() {
        let mut history = adds(&[1, 2, 1, 2]);
        assert_eq!(history.succeeded(1, value(&[])), Ok(()));
        assert_eq!(history.succeeded(0, value(&[1])), Ok(()));
        // The third has ended without an answer; the value says that it has happened.
        assert_eq!(history.holds(value(&[0, 1, 2])), Ok(()));
        assert_eq!(history.succeeded(3, value(&[0, 1, 2])), Ok(()));
        assert_eq!(history.holds(value(&[0, 1, 2, 3])), Ok(()));
    }

    #[test]
    fn an_addition_twice() {
        let mut history = adds(&[1, 2]);
        assert_eq!(history.succeeded(0, value(&[])), Ok(()));
        assert!(history.holds(value(&[0, 0])).unwrap_err().0.contains("once"));
        let mut answered = adds(&[1, 2]);
        assert!(answered.succeeded(0, value(&[0])).unwrap_err().1.contains("before it happened"));
    }

    #[test]
    fn additions_that_contradict_each_other() {
        // Both say that they were first.
        let mut both_first = adds(&[1, 2]);
        assert_eq!(both_first.succeeded(0, value(&[])), Ok(()));
        assert!(both_first.succeeded(1, value(&[])).is_err());
        // Each says that the other was first.
        let mut both_last = adds(&[1, 2]);
        assert_eq!(both_last.succeeded(0, value(&[1])), Ok(()));
        assert!(both_last.succeeded(1, value(&[0])).is_err());
        // The second of a connection without the first.
        let mut out_of_order = adds(&[1, 1]);
        assert!(out_of_order.holds(value(&[1])).is_err());
        // One that was posted after another had succeeded.
        let mut late = adds(&[1]);
        assert_eq!(late.succeeded(0, value(&[])), Ok(()));
        late.posted(Atomic::FetchAndAdd { add: digit(1) }, 2);
        assert!(late.succeeded(1, value(&[])).is_err());
        // One that nobody posted, and one that is undone.
        assert!(adds(&[1]).holds(value(&[1])).is_err());
        let mut undone = adds(&[1]);
        assert_eq!(undone.holds(value(&[0])), Ok(()));
        assert!(undone.holds(value(&[])).is_err());
    }

    #[test]
    fn an_addition_after_its_connection_was_reset() {
        let mut history = adds(&[1, 2]);
        assert_eq!(history.holds(value(&[0])), Ok(()));
        history.cannot_happen_later(0);
        history.cannot_happen_later(1);
        assert_eq!(history.holds(value(&[0])), Ok(()));
        assert!(history.holds(value(&[0, 1])).is_err());
    }

    fn swaps(requests: &[(u64, u64, u64)]) -> History {
        let mut history = History::new(WordUse::Swap, START);
        for &(compare, swap, connection) in requests {
            history.posted(Atomic::CompareAndSwap { compare, swap }, connection);
        }
        history
    }

    #[test]
    fn swaps_in_some_order() {
        let mut history = swaps(&[(START, 1, 1), (1, 2, 2), (7, 3, 1), (2, 4, 2)]);
        assert_eq!(history.succeeded(0, START), Ok(()));
        assert_eq!(history.succeeded(2, 1), Ok(()), "it found another value and swapped nothing");
        // The second has ended without an answer; the fourth says that it has happened.
        assert_eq!(history.succeeded(3, 2), Ok(()));
        assert_eq!(history.holds(4), Ok(()));
        assert!(history.holds(2).is_err(), "an older value");
    }

    #[test]
    fn a_swap_twice() {
        // Two say that they found the same value.
        let mut both = swaps(&[(START, 1, 1), (START, 2, 2)]);
        assert_eq!(both.succeeded(0, START), Ok(()));
        assert!(both.succeeded(1, START).is_err());
        // It was carried out, and then again: its own value comes back.
        let mut again = swaps(&[(START, 1, 1)]);
        assert!(again.succeeded(0, 1).is_err());
        // A value that nobody put, and one of a swap that found something else.
        assert!(swaps(&[(START, 1, 1)]).holds(9).is_err());
        let mut other = swaps(&[(5, 1, 1)]);
        assert_eq!(other.succeeded(0, START), Ok(()));
        assert!(other.holds(1).is_err());
    }

    #[test]
    fn a_swap_that_brings_an_old_value() {
        let mut history = swaps(&[(START, 1, 1)]);
        assert_eq!(history.succeeded(0, START), Ok(()));
        history.posted(Atomic::CompareAndSwap { compare: 9, swap: 2 }, 2);
        assert!(history.succeeded(1, START).is_err());
        // On one connection the later one finds at least what the earlier one left.
        let mut ordered = swaps(&[(START, 1, 1), (9, 2, 1)]);
        assert_eq!(ordered.succeeded(0, START), Ok(()));
        assert!(ordered.succeeded(1, START).is_err());
    }

    #[test]
    fn a_swap_after_its_connection_was_reset() {
        let mut history = swaps(&[(START, 1, 1)]);
        assert_eq!(history.holds(START), Ok(()));
        history.cannot_happen_later(0);
        assert!(history.holds(1).is_err());
    }
}
