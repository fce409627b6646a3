//! What every scheduler must hold to: valid plans, and a queue that always drains.

use super::super::report::{Report, ensure};
use super::super::subject::SchedulerSubject;
use super::super::toy::mix;
use super::scheduler_world::{Job, World};
use super::{Fixture, MakeOn, text};
use crate::types::{RequestId, SeqId};

type Check = Result<(), String>;
type Subject = Box<dyn SchedulerSubject>;

pub(super) fn suite(fixture: &Fixture, make: MakeOn<'_, dyn SchedulerSubject>) -> Report {
    let mut report = Report::default();
    let fresh = || make(&fixture.fresh_host()).map_err(text);
    report.run("new", || fresh().map(drop));
    if !report.passed() {
        return report;
    }
    report.run("an empty queue runs nothing", || empty(fresh()?));
    report.run("one sequence drains", || alone(fresh()?));
    report.run("a queue drains where slots abound", || abundant(fresh()?));
    report.run("a queue drains where slots are scarce", || scarce(&fresh));
    report.run("drafts fit the slots there are", || drafts(&fresh));
    report.run("cached slots count as available", || cached(fresh()?));
    report.run("a long prompt comes in and others finish", || long_prompt(fresh()?));
    report.run("arrivals during the run drain too", || arrivals(fresh()?));
    let pairs = "both sequences of a pair run or neither";
    match fresh().and_then(|mut part| part.supports_pairs().map_err(text)) {
        Ok(true) => report.run(pairs, || paired(&fresh)),
        Ok(false) => report.skip(pairs, "supports_pairs is false"),
        Err(reason) => report.run(pairs, || Err(reason)),
    }
    report
}

fn empty(mut part: Subject) -> Check {
    let ran = World::new(Vec::new(), 16).step(&mut *part)?;
    ensure(ran == 0, || format!("{ran} sequences ran"))
}

fn alone(mut part: Subject) -> Check {
    // The smallest pool that can ever hold it: its last token's KV is never needed.
    World::new(vec![Job::new(1, 9, 5)], 13).drain(&mut *part).map(drop)
}

fn jobs(count: u64, salt: u64) -> Vec<Job> {
    let draw = |id: u64, what: u64, below: u64| (mix((salt << 32) | (id << 8) | what) % below) as u32;
    let job = |id: u64| Job {
        priority: draw(id, 0, 3) as i32 - 1,
        ..Job::new(id + 1, 1 + draw(id, 1, 40), 1 + draw(id, 2, 12))
    };
    (0..count).map(job).collect()
}

fn largest(jobs: &[Job]) -> u32 {
    jobs.iter().map(|job| job.tokens + job.remaining - 1).max().unwrap_or(0)
}

fn abundant(mut part: Subject) -> Check {
    let widest = World::new(jobs(24, 1), 4096).drain(&mut *part)?;
    ensure(widest > 0, || "nothing ran".to_owned())
}

fn scarce(fresh: &dyn Fn() -> Result<Subject, String>) -> Check {
    for salt in 0..12 {
        let jobs = jobs(8, salt);
        let slots = largest(&jobs) + (salt as u32 % 4) * 7;
        let context = |reason| format!("{slots} slots, seed {salt}: {reason}");
        World::new(jobs, slots).drain(&mut *fresh()?).map_err(context)?;
    }
    Ok(())
}

fn drafts(fresh: &dyn Fn() -> Result<Subject, String>) -> Check {
    for salt in 0..12 {
        let mut jobs = jobs(8, salt);
        jobs.iter_mut().for_each(|job| job.max_draft = 1 + job.tokens % 7);
        let slots = largest(&jobs) + (salt as u32 % 4) * 11;
        let context = |reason| format!("{slots} slots, seed {salt}: {reason}");
        World::new(jobs, slots).drain(&mut *fresh()?).map_err(context)?;
    }
    Ok(())
}

fn cached(mut part: Subject) -> Check {
    let mut world = World::new(jobs(6, 3), 64);
    world.cached = true;
    world.drain(&mut *part).map(drop)
}

fn long_prompt(mut part: Subject) -> Check {
    let mut queue = jobs(6, 4);
    queue.insert(2, Job::new(100, 3000, 4));
    World::new(queue, 3400).drain(&mut *part).map(drop)
}

fn arrivals(mut part: Subject) -> Check {
    let mut world = World::new(jobs(2, 5), 96);
    for arrival in 0..10u64 {
        world.step(&mut *part)?;
        world.jobs.push(Job::new(50 + arrival, 1 + arrival as u32 * 3, 6));
    }
    world.drain(&mut *part).map(drop)
}

fn paired(fresh: &dyn Fn() -> Result<Subject, String>) -> Check {
    for salt in 0..12u64 {
        let mut queue = jobs(4, salt);
        for pair in 0..3u64 {
            let (cond, uncond) = (200 + 2 * pair, 201 + 2 * pair);
            let prompt = 2 + (mix((salt << 8) | pair) % 30) as u32;
            let (request, max_draft) = (RequestId(cond), salt as u32 % 4);
            let half = |id, other, prompt| Job {
                request,
                companion: Some(SeqId(other)),
                max_draft,
                ..Job::new(id, prompt, 6)
            };
            queue.insert(pair as usize, half(uncond, cond, 1 + prompt / 3));
            queue.insert(pair as usize, half(cond, uncond, prompt));
        }
        let slots = 2 * largest(&queue) + (salt as u32 % 3) * 9;
        let context = |reason| format!("{slots} slots, seed {salt}: {reason}");
        World::new(queue, slots).drain(&mut *fresh()?).map_err(context)?;
    }
    Ok(())
}
