//! Other limiters on the same Redis.

use super::Bench;

pub(super) fn measure(_bench: &Bench<'_>) -> anyhow::Result<()> {
    Ok(())
}
