#[tidegate_macros::rate_limit("10/s", tier = user)]
async fn search(user: u64) -> Result<(), ()> {
    Ok(())
}

fn main() {}
