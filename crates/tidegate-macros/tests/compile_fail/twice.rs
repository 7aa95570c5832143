#[tidegate_macros::rate_limit("10/s", key = user, key = user)]
async fn search(user: u64) -> Result<(), ()> {
    Ok(())
}

fn main() {}
