//! A way to end a trial from elsewhere. It says only whether; what is left to do then is each part's business.

use std::sync::Arc;

use tokio::sync::watch;

/// Cheap to clone; all clones are one.
#[derive(Debug, Clone)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// Not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Ends whatever is tried, soon. May be called from anywhere, any number of times.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Whether it was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it was called.
    pub async fn cancelled(&self) {
        let mut changes = self.0.subscribe();
        // An error would mean that nobody can cancel any more, but `self` is one who can.
        drop(changes.wait_for(|cancelled| *cancelled).await);
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}
