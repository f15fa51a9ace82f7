//! Bytes of messages that were received side by side become one piece, and nothing else does.

use crate::ends;

use ends::{Ends, Options};
use longhaul_sdr::memory::{BorrowError, ReceivedBytes};

/// Bytes of a receive that is completed before anything comes.
fn received(ends: &Ends, range: std::ops::Range<usize>) -> ReceivedBytes {
    let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range).expect("there is room");
    receive.complete().expect("the key is revoked").into_bytes()
}

#[test]
fn neighbours_become_one_piece_that_has_their_bytes_alone() {
    let ends = Ends::new(Options::default(), |_| ());
    let memory = &ends.receiver.memory;
    memory
        .write(0..memory.len())
        .expect("it is free")
        .iter_mut()
        .zip(0..)
        .for_each(|(byte, place)| *byte = place as u8);
    let [one, two, three] = [100..200, 200..250, 250..300].map(|range| received(&ends, range));
    let mut whole = one.join(two.join(three).ok().expect("neighbours")).ok().expect("neighbours");
    assert_eq!(whole.range(), 100..300);
    assert!(whole.iter().copied().eq((100..300).map(|place: usize| place as u8)));
    whole.fill(7);
    for range in [100..101, 199..201, 249..251, 299..300] {
        assert!(matches!(memory.read(range), Err(BorrowError::InUse { by, .. }) if by == (100..300)));
    }
    assert!(memory.write(0..100).is_ok() && memory.write(300..400).is_ok());
    drop(whole);
    assert!(memory.write(0..memory.len()).expect("all of it is free")[100..300].iter().all(|byte| *byte == 7));
}

#[test]
fn what_does_not_lie_side_by_side_stays_as_it_is() {
    let ends = Ends::new(Options::default(), |_| ());
    let memory = &ends.receiver.memory;
    let (one, other) = received(&ends, 0..10).join(received(&ends, 11..20)).err().expect("a byte lies between");
    let (other, one) = other.join(one).err().expect("the wrong way round");
    assert_eq!((one.range(), other.range()), (0..10, 11..20));
    assert!(memory.write(0..1).is_err() && memory.write(10..11).is_ok() && memory.write(19..20).is_err());
    // The same places, but of another memory.
    let elsewhere = ends.receiver.context.register(vec![0; 20]).expect("there is room");
    let receive = ends.receiver.queue_pair.post_receive(&elsewhere, 10..20).expect("there is room");
    let stranger = receive.complete().expect("the key is revoked").into_bytes();
    let (one, stranger) = one.join(stranger).err().expect("in another memory");
    drop(one);
    assert!(memory.write(0..10).is_ok() && elsewhere.write(10..20).is_err());
    drop(stranger);
    assert!(elsewhere.write(0..20).is_ok() && memory.write(11..12).is_err());
    drop(other);
    assert!(memory.write(0..20).is_ok());
}
