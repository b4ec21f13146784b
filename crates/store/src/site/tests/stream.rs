//! The way of the log to a host: all of it, or what its subscription delivers. The subscription is the router's, so
//! requests to it, and what it delivers, are on the way for a while; none is lost or overtaken while the epoch lives.

use std::collections::VecDeque;

use rand::RngExt;
use rand::rngs::StdRng;

use super::super::*;
use super::Bug;
use crate::subscription::Subscription;

/// How a host receives the log.
pub(super) enum Stream {
    /// Entry by entry; so many it was told.
    Whole(Position),
    Subscribed(Box<Way>),
}

/// Between a host and its subscription.
pub(super) struct Way {
    subscription: Subscription,
    requests: VecDeque<Request>,
    coming: VecDeque<(Position, Vec<Delivery<'static>>)>,
    /// Requests that are executed one entry late, for [`Bug::SubscribedLate`].
    late: Vec<Request>,
}

impl Stream {
    pub fn whole(known: Position) -> Self {
        Self::Whole(known)
    }

    pub fn subscribed(site: Site, epoch: Epoch, known: Position, design: Design) -> Self {
        Self::of(Subscription::new(site, epoch, known, design))
    }

    /// Of a host that kept what it holds.
    pub fn resumed(site: Site, epoch: Epoch, known: Position, design: Design) -> Self {
        Self::of(Subscription::resumed(site, epoch, known, design))
    }

    fn of(subscription: Subscription) -> Self {
        let (requests, coming, late) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Self::Subscribed(Box::new(Way { subscription, requests, coming, late }))
    }

    pub fn is_subscribed(&self) -> bool {
        matches!(self, Self::Subscribed(_))
    }

    /// How much of the log has left for the host.
    pub fn sent(&self) -> Position {
        match self {
            Self::Whole(told) => *told,
            Self::Subscribed(way) => way.subscription.known(),
        }
    }

    /// Whether nothing is on the way.
    pub fn is_idle(&self) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Subscribed(way) => way.requests.is_empty() && way.coming.is_empty(),
        }
    }

    pub fn request(&mut self, request: Request) {
        let Self::Subscribed(way) = self else { panic!("it receives the whole log") };
        way.requests.push_back(request);
    }

    /// The next thing that arrives at the host, if something does: for a subscriber, one of the steps in between
    /// may be all that happens.
    pub fn next(&mut self, log: &[LogEntry], bug: Option<Bug>, dice: &mut StdRng) -> Option<Input> {
        match self {
            Self::Whole(told) => {
                let entry = log.get(usize::try_from(told.0).unwrap())?;
                *told += 1;
                Some(Input::Logged(*told, [entry.clone()].into()))
            }
            Self::Subscribed(way) => way.next(log, bug, dice),
        }
    }
}

impl Way {
    fn next(&mut self, log: &[LogEntry], bug: Option<Bug>, dice: &mut StdRng) -> Option<Input> {
        if dice.random_range(0..2) == 0
            && let Some(request) = self.requests.pop_front()
        {
            self.execute(request, bug);
        }
        if dice.random_range(0..4) > 0 {
            let from = usize::try_from(self.subscription.known().0).unwrap();
            let upto = log.len().min(from + dice.random_range(1..4));
            if from < upto {
                self.deliver(&log[from..upto], bug);
            }
        }
        let is_slow = dice.random_range(0..10) == 0;
        let (first, deliveries) = if is_slow { None } else { self.coming.pop_front() }?;
        Some(Input::Delivered(first, deliveries))
    }

    fn execute(&mut self, request: Request, bug: Option<Bug>) {
        let next = self.subscription.known() + 1;
        if let Some(begins) = self.subscription.execute(request.clone()) {
            self.coming.push_back((next, vec![begins]));
        }
        if bug == Some(Bug::SubscribedLate)
            && let Request::Begin(start, _) = &request
        {
            self.subscription.execute(Request::End(start.clone()));
            self.late.push(request);
        }
    }

    fn deliver(&mut self, entries: &[LogEntry], bug: Option<Bug>) {
        for entry in entries {
            let entries = std::slice::from_ref(entry);
            let (first, mut deliveries) =
                self.subscription.deliver(self.subscription.known() + 1, entries);
            if bug == Some(Bug::VersionUntold) {
                deliveries.retain(|delivery| !matches!(delivery, Delivery::Begins { .. }));
            }
            // As over a connection.
            let bytes = postcard::to_stdvec(&deliveries).unwrap();
            self.coming.push_back((first, postcard::from_bytes(&bytes).unwrap()));
            for request in mem::take(&mut self.late) {
                self.subscription.execute(request);
            }
        }
    }
}
