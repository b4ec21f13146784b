//! A long path, made in user space: the TCP packets of a host leave it later.
//!
//! Not every kernel can delay packets. Therefore the host's routes lead its TCP packets into a device of this process
//! (`tun`). The process holds each packet for the latency of the path to its destination, and then sends it over the
//! host's real link. The kernel's TCP sees a path of that latency: its round trips, slow start and recovery are those
//! of the long path.
//!
//! The process also reduces the windows that packets offer, since kernels differ in whether they respect a configured
//! limit. This requires that window scaling is off.
//!
//! Invariants: a packet leaves no sooner than its latency after it was sent; packets to one host leave in the order
//! in which they arrived; no packet offers more than the window.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::ioctl::{Updater, ioctl, opcode};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

use super::tasks::address;

/// Name of the device that receives the TCP packets of a host.
pub(super) const DEVICE: &str = "long";
/// Maximum number of packets in transit to one host. Further packets are lost, as at a link with a full queue.
const PACKETS_MAX: usize = 10_000;
const PACKET_BYTES_MAX: usize = 2_048;
/// Bytes of an IPv4 packet that have the destination address.
const TO: std::ops::Range<usize> = 16..20;

type Packet = (Instant, Vec<u8>);

/// The delayed paths of this process. They exist until the process ends.
pub(super) struct Wire {
    window_bytes: Arc<AtomicU16>,
}

impl Wire {
    /// Starts to delay the packets to each host, by host number, by this latency.
    pub(super) fn lengthen(latencies: &[Duration]) -> std::io::Result<Self> {
        let tun = attach()?;
        let link = Arc::new(socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))?);
        let mut ways = Vec::new();
        for (host, latency) in latencies.iter().enumerate() {
            let (entry, packets) = mpsc::sync_channel(PACKETS_MAX);
            let (to, link) = (address(host), Arc::clone(&link));
            let run = move || carry(&packets, &link, to);
            thread::Builder::new().name(format!("wire-{host}")).spawn(run)?;
            ways.push(Way { to, latency: *latency, entry });
        }
        let window_bytes = Arc::new(AtomicU16::new(u16::MAX));
        let window = Arc::clone(&window_bytes);
        thread::Builder::new().name("wires".into()).spawn(move || take(tun, &ways, &window))?;
        Ok(Self { window_bytes })
    }

    /// Limits the windows that this host offers to `bytes` from now on.
    pub(super) fn set_window(&self, bytes: u16) {
        self.window_bytes.store(bytes, Ordering::Relaxed);
    }
}

/// The path to one host.
struct Way {
    to: SocketAddrV4,
    latency: Duration,
    entry: SyncSender<Packet>,
}

/// Creates [`DEVICE`] and returns the file from which its packets are read. The device exists as long as the file is
/// open.
fn attach() -> std::io::Result<File> {
    /// The kernel's `struct ifreq`, with the fields that are used here.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    /// Flags of the kernel's `linux/if_tun.h` (`IFF_TUN`, `IFF_NO_PI`): IP packets without a preceding header.
    const TUN_WITHOUT_HEADER: u16 = 0x0001 | 0x1000;
    const TUN_SET_INTERFACE: u32 = opcode::write::<i32>(b'T', 202);
    let tun = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: TUN_WITHOUT_HEADER, rest: [0; 22] };
    request.name[..DEVICE.len()].copy_from_slice(DEVICE.as_bytes());
    #[expect(unsafe_code, reason = "there is no safe form of this request to the kernel")]
    // SAFETY: this request reads and writes one `struct ifreq` of 40 bytes, which is the layout of `Request`.
    // `request` lives until the call returns, and the kernel keeps no pointer to it.
    unsafe {
        ioctl(&tun, Updater::<TUN_SET_INTERFACE, Request>::new(&mut request))?;
    }
    Ok(tun)
}

/// Reads packets from the device, and queues each with its departure time for the path to its host.
fn take(mut tun: File, ways: &[Way], window_bytes: &AtomicU16) {
    let mut buffer = [0; PACKET_BYTES_MAX];
    loop {
        let packet = match tun.read(&mut buffer) {
            Ok(bytes) => &mut buffer[..bytes],
            Err(cause) => return tracing::error!(%cause, "a host can send no more"),
        };
        let is_to = |way: &&Way| packet.get(TO) == Some(&way.to.ip().octets()[..]);
        // Packets to other addresses are the kernel's own neighbour discovery.
        let Some(way) = ways.iter().find(is_to) else { continue };
        cut_window(packet, window_bytes.load(Ordering::Relaxed));
        match way.entry.try_send((Instant::now() + way.latency, packet.to_vec())) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => tracing::warn!("more packets than fit on a wire"),
            Err(TrySendError::Disconnected(_)) => return,
        }
    }
}

/// Reduces the window that a TCP packet offers to at most `window_bytes`, and corrects its checksum (RFC 1624).
fn cut_window(packet: &mut [u8], window_bytes: u16) {
    const PROTOCOL: usize = 9;
    const TCP: u8 = 6;
    let tcp = usize::from(packet.first().copied().unwrap_or(0) & 0x0f) * 4;
    if packet.get(PROTOCOL) != Some(&TCP) {
        return;
    }
    let Some(&mut [w0, w1, c0, c1]) = packet.get_mut(tcp + 14..tcp + 18) else { return };
    let (offered, checksum) = (u16::from_be_bytes([w0, w1]), u16::from_be_bytes([c0, c1]));
    if offered <= window_bytes {
        return;
    }
    let sum = u32::from(!checksum) + u32::from(!offered) + u32::from(window_bytes);
    // The sum has at most two carries.
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    packet[tcp + 14..tcp + 16].copy_from_slice(&window_bytes.to_be_bytes());
    packet[tcp + 16..tcp + 18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

fn carry(packets: &Receiver<Packet>, link: &OwnedFd, to: SocketAddrV4) {
    for (at, packet) in packets {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        // A full link may lose packets; TCP sends them again.
        if let Err(cause) = sendto(link, &packet, SendFlags::empty(), &to) {
            tracing::warn!(%cause, %to, "a packet is lost at its host's own link");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the sum of all 16-bit words, as in a TCP checksum. It excludes the pseudo-header, which does not
    /// contain the window.
    fn sum(words: &[u8]) -> u16 {
        let words = words.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    fn packet(window_bytes: u16, protocol: u8) -> Vec<u8> {
        let mut packet = vec![0x45; 20];
        packet[9] = protocol;
        packet.extend((0..40).map(|byte: u8| byte.wrapping_mul(37)));
        packet[34..36].copy_from_slice(&window_bytes.to_be_bytes());
        packet
    }

    #[test]
    fn a_window_is_cut_down_and_the_checksum_stays_right() {
        for (offered, allowed) in [(65_535, 16_384), (64_240, 1), (300, 299), (40_000, 0x8001)] {
            let mut cut = packet(offered, 6);
            let before = sum(&cut[20..]);
            cut_window(&mut cut, allowed);
            assert_eq!(cut[34..36], allowed.to_be_bytes(), "{offered}");
            assert_eq!(sum(&cut[20..]), before, "{offered}");
        }
    }

    #[test]
    fn a_smaller_window_and_what_is_no_tcp_stay_as_they_are() {
        for mut kept in [packet(100, 6), packet(65_535, 17), vec![], vec![0x45; 20]] {
            let before = kept.clone();
            cut_window(&mut kept, 100);
            assert_eq!(kept, before);
        }
    }
}
