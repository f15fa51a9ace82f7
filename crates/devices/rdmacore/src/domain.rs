//! Protection domains: everything that belongs together is made in one. What a domain makes is in `protection_domain`.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::sync::Arc;

use longhaul_verbs::CreateError;

use crate::answer::{check, check_pointer};
use crate::context::Context;
use crate::handle::{Handle, Owned};
use longhaul_verbs_abi::{ibv_device_attr, ibv_pd};

/// A protection domain as verbs programs see it.
pub(crate) struct ProtectionDomain {
    domain: Arc<Domain>,
}

/// The protection domain itself; everything that is made in it holds it.
pub(crate) struct Domain {
    context: Arc<Context>,
    handle: Handle<ibv_pd>,
    /// What the device said when the domain was made; its limits do not change.
    attributes: ibv_device_attr,
}

impl ProtectionDomain {
    /// A new one (`ibv_alloc_pd`).
    pub(crate) fn allocate(context: &Arc<Context>) -> Result<Self, CreateError> {
        let attributes = context.query_device()?.orig_attr;
        // SAFETY: the device is open.
        let handle = check_pointer(unsafe { (context.library().ibv_alloc_pd)(context.as_ptr()) })?;
        Ok(ProtectionDomain {
            domain: Arc::new(Domain { context: context.clone(), handle: Handle::new(handle), attributes }),
        })
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl Owned for ProtectionDomain {
    fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }
}

impl Domain {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.handle.as_ptr()
    }

    /// Sizes and abilities of the device.
    pub(crate) fn attributes(&self) -> &ibv_device_attr {
        &self.attributes
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate`, and nothing of it is left: each object made in it holds it.
        let answer = unsafe { (self.context.library().ibv_dealloc_pd)(self.handle.as_ptr()) };
        if let Err(error) = check(answer) {
            // Something of it could not be destroyed either, and has said so; closing the device ends both.
            tracing::debug!(%error, "a protection domain stays until the device is closed");
        }
    }
}

/// Refuse what is more than the device allows, with the names that all devices use.
pub(crate) fn check_bounds(bounds: &[(&'static str, u32, u32)]) -> Result<(), CreateError> {
    for &(what, requested, most) in bounds {
        if requested > most {
            return Err(CreateError::TooMany { what, requested: requested.into(), most: most.into() });
        }
    }
    Ok(())
}
