#[tidegate_macros::rate_limit(key = user)]
async fn search(user: u64) -> Result<(), ()> {
    Ok(())
}

fn main() {}
