//! Links between interfaces of this host's kernel, in network namespaces of the tests' own.

mod ground;

mod captures;
mod frames;
mod garbage;
