//! Copies to and from memory of this process that may be gone: by the kernel, which reports a fault instead of sending a
//! signal.
//!
//! A handler of SIGSEGV would be faster, but signals belong to the program: its own handler, its debugger or its runtime
//! would see faults of ours, or ours those of the program.

use std::io::{self, IoSlice, IoSliceMut};

use longhaul_softnic::ForeignMemory;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::gettid;

/// For [`Config::foreign_memory`](longhaul_softnic::Config::foreign_memory). Fails where the kernel or a sandbox does not let
/// a process copy its own memory this way.
pub fn foreign_memory() -> io::Result<ForeignMemory> {
    let (one, mut other) = ([0x4c_u8], [0_u8]);
    // Both calls: sandboxes permit them one by one.
    let from = RemoteIoVec { base: one.as_ptr().addr(), len: 1 };
    process_vm_readv(gettid(), &mut [IoSliceMut::new(&mut other)], &[from])?;
    let to = RemoteIoVec { base: other.as_mut_ptr().expose_provenance(), len: 1 };
    process_vm_writev(gettid(), &[IoSlice::new(&one)], &[to])?;
    Ok(ForeignMemory { read, write })
}

// The process is named by the calling thread. The process's own number is that of its first thread, which has no memory
// any more once it has left by pthread_exit, although the process goes on.

fn read(from: u64, into: &mut [u8]) -> bool {
    let wanted = into.len();
    let Ok(base) = usize::try_from(from) else { return false };
    let there = RemoteIoVec { base, len: wanted };
    process_vm_readv(gettid(), &mut [IoSliceMut::new(into)], &[there]) == Ok(wanted)
}

fn write(from: &[u8], to: u64) -> bool {
    let Ok(base) = usize::try_from(to) else { return false };
    let there = RemoteIoVec { base, len: from.len() };
    process_vm_writev(gettid(), &[IoSlice::new(from)], &[there]) == Ok(from.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_a_fault_and_no_signal() {
        let ForeignMemory { read, .. } = foreign_memory().expect("this host lets a process copy its own memory");
        let there = *b"bytes";
        let mut into = [0; 5];
        assert!(read(there.as_ptr().addr() as u64, &mut into));
        assert_eq!(&into, b"bytes");
        assert!(!read(0x10, &mut into), "the first page is never mapped");
        assert!(!write(b"bytes", 0x10));
    }
}
