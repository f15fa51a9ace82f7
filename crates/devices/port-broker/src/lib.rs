//! Several processes of one user share UDP port 4791 of an address, as an ordinary user.
//!
//! Programs tell each other an address and a queue pair number, never a port. So each process must be reachable at 4791, which
//! one socket can have, or several that share it (SO_REUSEPORT). The broker, a small process of its own for each user and network
//! namespace, opens 64 of them at an address, steered by the destination queue pair number, and hands them to the processes:
//!
//! ```text
//!   process ── asks for an address ──▶ broker ── opens 64 sockets, once for each address
//!           ◀── its part, 64 sockets ──
//!
//!   packet ──▶ kernel: top six bits of the destination queue pair ──▶ the socket of this part ──▶ the process that has it
//! ```
//!
//! - **Part 0 is kept** for queue pair 1, connection management. 63 processes can share an address.
//! - **Everyone holds all 64 sockets.** When a member of such a group closes, the kernel moves the last one into its place, and live
//!   processes would get each other's packets. As long as anyone holds all of them nothing moves. So sockets survive the death
//!   of the broker, and the broker that of a process.
//! - **A connection is a lease.** A process keeps its connection to the broker as long as it uses the part. The kernel closes it
//!   when the process ends, however it ends.
//! - **A part that is free receives nothing**: its socket has a filter that drops all. Before it is given away again, what had
//!   arrived for the last owner is thrown away. What is still in the network may reach the next owner; its queue pair numbers,
//!   keys and packet sequence numbers are drawn at random, so such a packet is refused as any stranger's.
//! - **Users do not share.** Both ends compare the other's user ID, and the kernel lets no other user's socket into the group. Processes
//!   of one user trust each other, since they could trace each other anyway.
//! - **The name is an abstract one**, which is of the network namespace, as the ports are. It leaves no file behind. Another user can
//!   take it, as he could take the port: then nobody gets his sockets, and a process gets the port alone if it is free.
//! - **A broker that was killed** leaves those that have a part undisturbed. A new one cannot join them: it refuses new processes at
//!   such an address until the last of the old ones has ended, and says so. To hand the sockets over, each process
//!   would need a thread that serves others.
//! - **It ends by itself**: the sockets of an address close a second after the last process has left, and the broker ends a second
//!   after it has nothing left.
//!
//! Files: `decisions` has what the broker decides, without sockets. `broker` drives it. `group`: the sockets of an address.
//! `letters`: what is said. `lease`: the side of a process. `start`: starts a broker. `parts`: how a port is divided. `user`: whose
//! process it is. `descriptors`: what needs unsafe calls.
#![cfg(target_os = "linux")]

mod broker;
mod decisions;
mod descriptors;
mod group;
mod lease;
mod letters;
mod parts;
mod start;
mod user;

pub use broker::serve;
pub use decisions::{Bounds, Decisions, Due, Verdict};
pub use group::Group;
pub use lease::{Lease, LeaseError, default_name};
pub use letters::Refusal;
pub use parts::{PARTS, PORT, PROCESSES};
