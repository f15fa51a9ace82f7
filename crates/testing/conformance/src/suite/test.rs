//! What a test of the suite is.

use longhaul_verbs::Capabilities;

use super::context::Context;
use super::failure::Outcome;

/// One test of the suite.
pub struct Test {
    name: String,
    needs: Capabilities,
    pub(super) function: Box<dyn Fn(&mut Context<'_>) -> Outcome>,
}

impl Test {
    /// A test by its name, `transport/subject/case`, and the capabilities that it needs.
    pub fn new(
        name: impl Into<String>,
        needs: Capabilities,
        function: impl Fn(&mut Context<'_>) -> Outcome + 'static,
    ) -> Self {
        Test { name: name.into(), needs, function: Box::new(function) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a device must be able to do for it.
    pub fn needs(&self) -> Capabilities {
        self.needs
    }
}
