use imago_bench::adapt::*;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let scans: f64 = a[1].parse().unwrap();
    let which = &a[2];
    let secs: u64 = a[3].parse().unwrap();
    let cpu: f64 = a.get(4).map_or(0.15, |s| s.parse().unwrap());
    let pop = a.get(5).map_or(Popularity::Zipf(0.99), |s| match s.parse::<f64>().unwrap() { x if x == 0.0 => Popularity::Uniform, x => Popularity::Zipf(x)});
    let shift = a.get(6).and_then(|s| s.parse().ok()).filter(|s| *s > 0.0);
    let workload = Workload { users: 40_000, scans, popularity: pop, shift_every_s: shift };
    let (design, adapts) = match &which[..] {
        "random" => (random(40_000, 32, 4, 11), false),
        "adapt" => (random(40_000, 32, 4, 11), true),
        "ideal" => (balanced(&workload, 4, false), false),
        "idealr" => (balanced(&workload, 4, true), false),
        _ => panic!(),
    };
    let setting = Setting { sites: 4, site_cpu: (cpu > 0.0).then_some(cpu), clients: 64, lasts: Duration::from_secs(secs), workload, design, adapts, seed: 5 };
    let out = load(&setting, |n, rate, report| {
        print!("{n:3} {rate:8.0}");
        if let Some(r) = report { print!("  changes {} undone {} lat {:?} cpu {:?} pred {:?} planner {:.3} {}", r.changes, r.undone, r.latency_us.map(|x| x as u64), r.sites.iter().map(|s| (s.cpu*100.0) as i32).collect::<Vec<_>>(), r.sites.iter().map(|s| (s.predicted_cpu*100.0) as i32).collect::<Vec<_>>(), r.planner_cpu, r.distrust.clone().unwrap_or_default()); }
        println!();
    }).unwrap();
    println!("{:?} partitions {} cpu {:.2}", out.checked, out.partitions, out.cpu_s / secs as f64);
    if let Some(r) = out.report {
        for f in &r.functions { println!("{} const {:.3} w {:?} n {} R2 {:?}", f.name, f.constant, f.weights, f.samples, f.r_squared); }
        for d in r.decisions.iter().filter(|d| !matches!(d.verdict, imago_store::adapt::Verdict::Rejected(_))) { println!("{:.1} {:?} {:?} pred {:?} meas {:?} ben {:.0} cost {:.0}", d.at_ms as f64/1e3, d.operators, d.verdict, d.predicted_us, d.measured_us, d.benefit_us, d.cost_us); }
    }
}
