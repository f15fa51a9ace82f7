//! The verified exchange of two programs, each with a device of any kind: see [`interop`].

pub mod interop;
