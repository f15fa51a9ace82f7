//! Most tests of this crate, in one program: each further one would take seconds to link. A test that needs a program of its own
//! (an allocator, or to start itself again) is next to this folder.

#[path = "../kept_speed/mod.rs"]
mod kept_speed;
#[path = "../link_user/mod.rs"]
mod link_user;
#[path = "../perf_server/mod.rs"]
mod perf_server;

mod conformance;
mod devices_document;
mod interop;
mod json_errors;
mod link;
mod log;
mod perf;
mod perf_coding;
mod perf_compare;
mod perf_connections;
mod perf_fec;
mod perf_hadamard;
mod perf_off_host;
mod perf_pingpong;
mod perf_read;
mod perf_scheme;
mod perf_sdr;
mod perf_silence;
mod perf_trouble;
mod perf_veth;
mod perf_wan;
mod plan;
mod plan_figures;
mod plan_validate;
mod readme;
mod report;
mod sim_completion;
mod sim_lowar;
mod sim_scale;
mod sim_timeout;
mod wire;
