#[tidegate_macros::rate_limit("10/s", keys = user)]
async fn search(user: u64) -> Result<(), ()> {
    Ok(())
}

fn main() {}
