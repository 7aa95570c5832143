//! A result that is ready, or a future of it.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::blocking;

pin_project! {
    /// A result that is ready, or a future of it.
    ///
    /// A decision in memory is made at once; a decision on a remote store takes a future. Callers that
    /// need no future for the first case use [`into_ready`](Self::into_ready) or
    /// [`ready_or_future`](Self::ready_or_future). All others `.await` it.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// let verdict = gate.decide(&[Subject::new("api", "user:42")]).into_ready().expect("in memory")?;
    /// assert!(verdict.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct MaybeReady<T, F> {
        #[pin]
        state: State<T, F>,
    }
}

pin_project! {
    #[project = Projection]
    enum State<T, F> {
        // `None` once the result has been returned.
        Ready { result: Option<T> },
        Pending { #[pin] future: F },
    }
}

impl<T, F: Future<Output = T>> MaybeReady<T, F> {
    /// Wraps a result.
    #[inline]
    pub fn ready(result: T) -> Self {
        Self {
            state: State::Ready {
                result: Some(result),
            },
        }
    }

    /// Runs `future` now, unless it waits for a remote store.
    ///
    /// On a local store a future is ready when it is first polled.
    #[inline]
    pub fn new(is_remote: bool, future: F) -> Self {
        if is_remote {
            Self::pending(future)
        } else {
            Self::ready(blocking::ready(future))
        }
    }

    /// Wraps a future.
    #[inline]
    pub fn pending(future: F) -> Self {
        Self {
            state: State::Pending { future },
        }
    }

    /// Returns the result if it is ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// // In memory the result is ready.
    /// let subjects = [Subject::new("api", "user:42")];
    /// assert!(gate.admit(&subjects).into_ready().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn into_ready(self) -> Option<T> {
        match self.state {
            State::Ready { result } => result,
            State::Pending { .. } => None,
        }
    }

    /// Returns the result if it is ready, and otherwise the future.
    ///
    /// # Errors
    ///
    /// Returns `self` if the result is not ready.
    #[inline]
    pub fn ready_or_future(self) -> Result<T, Self> {
        match self.state {
            State::Ready {
                result: Some(result),
            } => Ok(result),
            state => Err(Self { state }),
        }
    }
}

impl<T, F: Future<Output = T>> Future for MaybeReady<T, F> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.project().state.project() {
            // Polled after completion, it stays pending.
            Projection::Ready { result } => result.take().map_or(Poll::Pending, Poll::Ready),
            Projection::Pending { future } => future.poll(context),
        }
    }
}

impl<T, F> std::fmt::Debug for MaybeReady<T, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_ready = matches!(self.state, State::Ready { .. });
        f.debug_struct("MaybeReady")
            .field("is_ready", &is_ready)
            .finish_non_exhaustive()
    }
}
