//! What is made of a graph whose nodes fit: a rule each. None of them changes what comes out.

pub(crate) mod behind_reduce;
pub(crate) mod largest;
pub(crate) mod passthrough;
pub(crate) mod read_outputs;
pub(crate) mod trim;
