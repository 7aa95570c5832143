#[tidegate_macros::rate_limit("10/s", tier = tier, tiers(gold = "0/s"))]
async fn search(tier: &str) -> Result<(), ()> {
    Ok(())
}

fn main() {}
