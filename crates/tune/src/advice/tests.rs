//! Advice on days and nights, on queues, and on what cannot be told.

use imago_plan::tune::roll::{CostClass, Costs};

use super::*;
use crate::decision_inputs::{DAY_S, Planning, Transition, uniform_transitions};
use crate::measurements::Measurements;

const MEASURED: &str = "\
configuration,operations_s,reads,updates
write-tuned,52000,0,1
write-tuned,30000,1,0
read-tuned,37000,0,1
read-tuned,46000,1,0
";

const COSTS: Costs = Costs {
    nodes: 3,
    at_once: 1,
    restart_s: 60.0,
    catch_up: 0.65,
    catch_up_capacity: 0.5,
    live_s: 0.5,
    alter_s: 1.0,
    rewrite_s: 600.0,
    rewrite_takes: 0.25,
};

/// Days of quarters of an hour, written to by day and read by night.
fn days(days: u64) -> Trace {
    let mut text = String::from("start,reads,updates\n");
    for n in 0..days * 96 {
        let (reads, updates) =
            if (28..76).contains(&(n % 96)) { (900, 9_100) } else { (9_500, 500) };
        text += &format!("{},{reads},{updates}\n", 1_490_054_400 + n * 900);
    }
    Trace::read("days.csv", text.as_bytes()).unwrap()
}

fn planning(trace: &Trace) -> Planning {
    let transitions = uniform_transitions(2, CostClass::Restart);
    Planning { weight: Weight::Demand, ..Planning::daily(trace.interval_s, COSTS, transitions) }
}

fn question<'q>(
    trace: &'q Trace,
    measurements: &'q Measurements,
    planning: &'q Planning,
) -> Question<'q> {
    let basis = DecisionInputs { measurements, planning, current: 0 };
    Question { trace, file: "days.csv", default: 0, queue: None, basis }
}

#[test]
fn a_workload_of_days_and_nights_is_followed_and_serves_more_than_any_fixed_configuration() {
    let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
    let trace = days(9);
    let advice = advise(&question(&trace, &measurements, &planning(&trace))).unwrap();
    assert!((advice.roll_s - 180.0).abs() < 1e-9);
    assert_eq!(advice.replay.lived, 3 * 96);
    // It begins at night, with the configuration for the day.
    assert_eq!(advice.replay.changes, 7, "{advice:?}");
    let ratio =
        |name: &str| advice.baselines.iter().find(|one| one.name == name).unwrap().planned_ratio;
    assert!(ratio("default") > 1.1 && ratio("static optimal") > 1.05, "{:?}", advice.baselines);
    assert!(ratio("oracle") > 0.99 && ratio("theoretical best") < 1.0);
    // It ends at midnight, by which time the nights' configuration pays for six hours.
    assert_eq!(advice.plan[0].to, "read-tuned", "{advice:?}");
    assert!(advice.expected.gain > 0.0);
    let confidence = advice.confidence.unwrap();
    assert!(confidence.plans >= 5 && confidence.gained > 0.99, "{confidence:?}");
    assert!((confidence.gain_low - advice.expected.gain).abs() < 0.01, "{confidence:?}");
    let of = |name: &str| advice.forecasts.iter().find(|one| one.name == name).unwrap();
    assert!(of("time of day").rmse[11].unwrap() < of("last value").rmse[11].unwrap());
}

#[test]
fn how_much_clients_ask_for_is_forecast_too_and_a_change_waits_for_a_quiet_time() {
    // A twentieth is gained.
    let measured = MEASURED.replace("read-tuned,46000,1,0", "read-tuned,31500,1,0");
    let measurements = Measurements::read("here.csv", measured.as_bytes()).unwrap();
    // Reads by day, at their peak from nine to five; a hundredth of that from two to four.
    let mut text = String::from("start,reads,updates\n");
    for n in 0..12 * 96_u64 {
        let all = match n % 96 {
            8..16 => 90_000,
            36..68 => 9_000_000,
            _ => 1_500_000,
        };
        // Updates in the first days: since then another configuration is the best one.
        let (reads, updates) = if n < 3 * 96 { (0, all) } else { (all, 0) };
        text += &format!("{},{reads},{updates}\n", 1_490_054_400 + n * 900);
    }
    let trace = Trace::read("days.csv", text.as_bytes()).unwrap();
    let mut planning = planning(&trace);
    (planning.costs.restart_s, planning.look_ahead) = (900.0, Some(40));
    let advice = advise(&question(&trace, &measurements, &planning)).unwrap();
    let demand = advice.demand.unwrap();
    assert_eq!((&*demand.forecast, demand.forecasts.len()), ("time-of-day", 3), "{demand:?}");
    assert!(demand.forecasts[1].rmse[11].unwrap() < 1e-3 * demand.mean_s, "{demand:?}");
    // The trace ends at midnight, and three nodes of a quarter of an hour each are changed from two on.
    let hour = |at_s: u64| (at_s % 86_400) as f64 / 3_600.0;
    assert_eq!(advice.plan.len(), 1, "{:?}", advice.plan);
    assert!((1.9..3.3).contains(&hour(advice.plan[0].at_s)), "{:?}", advice.plan);
    planning.weight = Weight::Capacity;
    let advice = advise(&question(&trace, &measurements, &planning)).unwrap();
    assert_eq!((hour(advice.plan[0].at_s), advice.demand), (0.0, None), "{:?}", advice.plan);
}

#[test]
fn records_unlike_those_that_were_measured_are_said() {
    let told = |measured_bytes: u32, bytes: &str| {
        let (first, rest) = MEASURED.split_once('\n').unwrap();
        let rest: Vec<String> =
            rest.lines().map(|line| format!("{line},{measured_bytes}\n")).collect();
        let text = format!("{first},record_bytes\n{}", rest.concat());
        let measurements = Measurements::read("here.csv", text.as_bytes()).unwrap();
        let mut text = String::from("start,reads,updates,record_bytes\n");
        for n in 0..96_u64 {
            text += &format!("{},9500,500,{bytes}\n", 1_490_054_400 + n * 900);
        }
        let trace = Trace::read("days.csv", text.as_bytes()).unwrap();
        advise(&question(&trace, &measurements, &planning(&trace))).unwrap().records
    };
    let far = told(1_000, "8200");
    assert_eq!((far.bytes, far.measured_bytes), (Some(8_200.0), Some(1_000.0)));
    assert_eq!(far.doubts.len(), 1, "{far:?}");
    assert!(far.doubts[0].contains("bytes: 1000, and clients ask for 8200"), "{far:?}");
    assert_eq!(told(1_000, "1024").doubts, Vec::<String>::new());
    assert_eq!(told(1_000, "").bytes, None);
}

#[test]
fn a_queue_is_planned_for_as_it_is_known_and_has_to_go_on_where_the_trace_ends() {
    let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
    let trace = days(9);
    let planning = planning(&trace);
    let end_s = 1_490_054_400 + 9 * DAY_S;
    // A day and a half of uploads, where nights have always been for reads; then it is read.
    let queue = |begins_s: u64| {
        let mut text = String::from("start,reads,updates\n");
        for n in 0..3 * 96_u64 {
            let (reads, updates) = if n < 144 { (0, 9_000) } else { (9_000, 0) };
            text += &format!("{},{reads},{updates}\n", begins_s + n * 900);
        }
        Trace::read("queue.csv", text.as_bytes()).unwrap()
    };
    let known = queue(end_s);
    let mut asked = question(&trace, &measurements, &planning);
    asked.queue = Some((&known, "queue.csv"));
    let advice = advise(&asked).unwrap();
    assert_eq!((&*advice.forecast, advice.look_ahead), ("job queue", 288));
    let [change] = &advice.plan[..] else { panic!("{:?}", advice.plan) };
    assert_eq!((&*change.to, change.at_s), ("read-tuned", end_s + 144 * 900));
    let late = queue(end_s + 900);
    asked.queue = Some((&late, "queue.csv"));
    let error = advise(&asked).unwrap_err().to_string();
    assert!(error.contains("queue.csv") && error.contains("where the trace ends"), "{error}");
}

#[test]
fn a_workload_that_flips_is_left_alone_and_it_is_said_why() {
    let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
    let mut text = String::from("start,reads,updates\n");
    for n in 0..400 {
        let (reads, updates) = if n / 2 % 2 == 0 { (10_000, 0) } else { (0, 10_000) };
        text += &format!("{},{reads},{updates}\n", 1_490_054_400 + n * 30);
    }
    let trace = Trace::read("flips.csv", text.as_bytes()).unwrap();
    let planning = Planning { weight: Weight::Capacity, ..planning(&trace) };
    let advice = advise(&question(&trace, &measurements, &planning)).unwrap();
    let ratio =
        |name: &str| advice.baselines.iter().find(|one| one.name == name).unwrap().planned_ratio;
    assert!(ratio("static optimal") > 0.98, "{advice:?}");
    assert!(ratio("naive") > 1.3, "{advice:?}");
    assert_eq!((&*advice.plan, advice.confidence), (&[][..], None));
    assert_eq!(advice.alternatives.len(), 1);
    let because = &advice.alternatives[0].because;
    assert!(
        because.contains("the change costs") || because.contains("serves no more"),
        "{because}"
    );
}

#[test]
fn confidence_follows_what_plans_of_the_past_have_kept() {
    let promise = |missed: f64| GainForecast { expected: 0.2, realised: 0.2 + missed };
    let missed = [-0.3, -0.04, -0.02, -0.01, 0.0, 0.0, 0.0, 0.01, 0.01, 0.02, 0.2];
    let gain_forecasts = missed.map(promise);
    let told = Confidence::of(0.1, &gain_forecasts).unwrap();
    assert_eq!((told.plans, told.gained), (11, 10.0 / 11.0));
    assert!((told.gain_low - 0.06).abs() < 1e-9 && (told.gain_high - 0.12).abs() < 1e-9);
    assert_eq!(Confidence::of(0.1, &gain_forecasts[..4]), None);
}

#[test]
fn a_change_that_is_barred_is_never_made_and_the_reason_is_said() {
    let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
    let trace = days(9);
    let mut planning = planning(&trace);
    planning.transitions[0][1] = Transition::Barred("restarts are not approved".into());
    let advice = advise(&question(&trace, &measurements, &planning)).unwrap();
    assert_eq!((advice.replay.changes, advice.plan.len()), (0, 0), "{advice:?}");
    let because = &advice.alternatives[0].because;
    assert_eq!(because, "no change to read-tuned: restarts are not approved");
    assert!(advice.alternatives[0].benefit > 0.1, "{advice:?}");
}

#[test]
fn what_cannot_be_told_is_said() {
    let measurements = Measurements::read("here.csv", MEASURED.as_bytes()).unwrap();
    let short = Trace::read("short.csv", "start,reads\n0,1\n60,1\n120,1\n".as_bytes()).unwrap();
    let error =
        advise(&question(&short, &measurements, &planning(&short))).unwrap_err().to_string();
    assert!(error.contains("3 intervals, and 30 at least"), "{error}");
    let day = days(2);
    let planning = Planning { forecast: Some("time-of-week".into()), ..planning(&day) };
    let error = advise(&question(&day, &measurements, &planning)).unwrap_err().to_string();
    assert!(error.contains("no forecast time-of-week") && error.contains("markov-2"), "{error}");
}
