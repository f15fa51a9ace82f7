//! Address handles: ways to peers, for datagrams.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::sync::Arc;

use longhaul_verbs::raw;
use longhaul_verbs::{Capabilities, CreateError, NotSupported, PathAttributes, SendRequest};

use crate::answer::{check, check_pointer};
use crate::context::Context;
use crate::domain::Domain;
use crate::handle::{Handle, Owned};
use crate::path::{has_free_udp_port, path_to_c, source_fits};
use longhaul_verbs_abi::ibv_ah;

/// An address handle as verbs programs see it.
pub(crate) struct AddressHandle {
    way: Arc<Way>,
}

/// The address handle itself. A device may look at it as late as when a datagram leaves, so queue pairs keep the ones
/// that they have been given last.
pub(crate) struct Way {
    domain: Arc<Domain>,
    handle: Handle<ibv_ah>,
    path: PathAttributes,
}

impl AddressHandle {
    /// `ibv_create_ah`
    pub(crate) fn create(domain: &Arc<Domain>, path: &PathAttributes) -> Result<Self, CreateError> {
        let context = domain.context();
        if has_free_udp_port(path) {
            return Err(NotSupported { capability: Capabilities::FREE_UDP_PORT }.into());
        }
        if path.port == 0 || path.port > domain.attributes().phys_port_cnt {
            return Err(CreateError::InvalidArgument { what: "port", expected: "a port of the device, from 1 on" });
        }
        if !source_fits(context, path) {
            return Err(CreateError::InvalidArgument {
                what: "source GID index",
                expected: "a row of the GID table whose address is of the destination's family",
            });
        }
        let mut attributes = path_to_c(path);
        // SAFETY: the domain is alive.
        let handle = check_pointer(unsafe { (context.library().ibv_create_ah)(domain.as_ptr(), &mut attributes) })?;
        let way = Way { domain: domain.clone(), handle: Handle::new(handle), path: *path };
        Ok(AddressHandle { way: Arc::new(way) })
    }

    pub(crate) fn way(&self) -> &Arc<Way> {
        &self.way
    }
}

impl Way {
    pub(crate) fn as_ptr(&self) -> *mut ibv_ah {
        self.handle.as_ptr()
    }
}

impl Owned for AddressHandle {
    fn context(&self) -> &Arc<Context> {
        self.way.domain.context()
    }
}

impl raw::AddressHandle for AddressHandle {
    fn path(&self) -> PathAttributes {
        self.way.path
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        // SAFETY: made in `create`, and nobody holds it any more.
        let answer = unsafe { (self.domain.context().library().ibv_destroy_ah)(self.handle.as_ptr()) };
        if let Err(error) = check(answer) {
            tracing::warn!(%error, "an address handle stays until the device is closed");
        }
    }
}

/// The address handle of a datagram that was found good.
pub(crate) fn way_of<'a>(request: &SendRequest<'a>) -> Option<&'a Arc<Way>> {
    let to = request.destination?;
    let handle = (to.address_handle as &dyn std::any::Any).downcast_ref::<AddressHandle>();
    handle.map(AddressHandle::way)
}
