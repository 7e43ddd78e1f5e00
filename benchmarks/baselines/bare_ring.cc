// The reference all-reduce of benchmarks/all_reduce.py and benchmarks/network.py: a ring over TCP,
// without tags, headers, threads or error recovery.
//
// The array is cut into N chunks. In each of 2(N-1) steps a rank sends one chunk to its right
// neighbour and receives one from its left. A chunk that was received in one step is sent in the
// next. In the first N-1 steps a received chunk is added to the rank's own; in the others it is
// complete and replaces it. With N = 2, rank 0 sends its half 0 while it receives rank 1's half 1
// and adds it, then sends this sum while it receives that of half 0. Every rank sends 2(N-1)/N of
// the array.
//
// One thread sends and receives without blocking. A byte may be sent as soon as it has been added,
// so that the steps overlap. Without progress the thread waits in poll().
//
//   bare_ring RANK SIZE HOST
//
// The protocol is lines: it prints "port P"; reads "connect HOST PORT" (of its right neighbour) and
// prints "connected"; then answers "verify COUNT BYTES" with "exact" and "run COUNT BYTES CALLS"
// with the seconds per call, until its input ends.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSendAtOnce = 256 << 10;
constexpr size_t kAddAtOnce = 128 << 10;  // stays in the second-level cache
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPatienceMilliseconds = 60'000;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "bare_ring: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

sockaddr_in Address(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)
    Fail("not an IPv4 address: " + host);
  return address;
}

class Ring {
 public:
  Ring(int rank, int size, const std::string& host)
      : rank_(rank), size_(size), scratch_(kAddAtOnce / sizeof(float)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Address(host, 0);
    if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      Fail("bind " + host);
    if (listen(listener_, 1) != 0) Fail("listen");
  }

  int port() const {
    sockaddr_in address{};
    socklen_t length = sizeof(address);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    return ntohs(address.sin_port);
  }

  // Every rank listens before any connects, so no rank waits for another here.
  void Connect(const std::string& host, int port) {
    right_ = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = Address(host, port);
    if (connect(right_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      Fail("connect " + host);
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, kPatienceMilliseconds) != 1)
      Fail("no connection from the left neighbour");
    left_ = accept(listener_, nullptr, nullptr);
    if (left_ < 0) Fail("accept");
    for (int connection : {left_, right_}) {
      const int on = 1;
      setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
  }

  void AllReduce(std::vector<float>& array) {
    const int steps = 2 * (size_ - 1);
    int sending = 0, receiving = 0;  // the steps
    size_t sent = 0, received = 0;   // bytes of their chunks; received counts whole floats only
    size_t left_over = 0;            // bytes in scratch_ that are not a whole float yet
    auto moved = Clock::now();
    while (sending < steps || receiving < steps) {
      bool progress = false;
      size_t may_send = 0;
      if (sending < steps) {
        const Chunk chunk = ChunkOf(array, sending);
        may_send = sending == 0 || receiving >= sending ? chunk.bytes
                   : receiving + 1 == sending           ? received
                                                        : 0;
        if (sent < may_send) {
          const ssize_t count =
              send(right_, chunk.begin + sent, std::min(may_send - sent, kSendAtOnce),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
          if (count < 0 && errno != EAGAIN) Fail("send");
          progress = count > 0;
          sent += std::max<ssize_t>(count, 0);
        }
        if (sent == chunk.bytes) {
          ++sending;
          sent = 0;
          progress = true;
        }
      }
      if (receiving < steps) {
        const Chunk chunk = ChunkOf(array, receiving + 1);
        const bool adds = receiving < size_ - 1;
        char* scratch = reinterpret_cast<char*>(scratch_.data());
        char* to = adds ? scratch + left_over : chunk.begin + received;
        const size_t max_count = adds ? std::min(kAddAtOnce, chunk.bytes - received) - left_over
                                      : chunk.bytes - received;
        const ssize_t count = max_count == 0 ? 0 : recv(left_, to, max_count, MSG_DONTWAIT);
        if (count == 0 && max_count > 0) Fail("the left neighbour has ended");
        if (count < 0 && errno != EAGAIN) Fail("recv");
        if (count > 0) {
          progress = true;
          received += adds ? Add(chunk.begin + received, left_over + count, &left_over) : count;
        }
        if (received == chunk.bytes) {
          ++receiving;
          received = 0;
          progress = true;
        }
      }
      if (progress) {
        moved = Clock::now();
      } else if (Clock::now() - moved > kSpin) {
        Wait(receiving < steps, sent < may_send);
      }
    }
  }

 private:
  struct Chunk {
    char* begin;
    size_t bytes;
  };

  // The chunk sent in a step; the one received in it is sent in the next.
  Chunk ChunkOf(std::vector<float>& array, int step) const {
    const size_t index = ((rank_ - step) % size_ + size_) % size_;
    const size_t begin = index * array.size() / size_, end = (index + 1) * array.size() / size_;
    return {reinterpret_cast<char*>(array.data() + begin), (end - begin) * sizeof(float)};
  }

  // Adds the whole floats of the first `bytes` bytes of scratch_; returns their number of bytes.
  size_t Add(char* to, size_t bytes, size_t* left_over) {
    const size_t floats = bytes / sizeof(float);
    float* __restrict__ sum = reinterpret_cast<float*>(to);
    const float* __restrict__ term = scratch_.data();
    for (size_t i = 0; i < floats; ++i) sum[i] += term[i];
    *left_over = bytes % sizeof(float);
    std::memmove(scratch_.data(), scratch_.data() + floats, *left_over);
    return floats * sizeof(float);
  }

  void Wait(bool to_receive, bool to_send) const {
    pollfd ends[2] = {{to_receive ? left_ : -1, POLLIN, 0}, {to_send ? right_ : -1, POLLOUT, 0}};
    if (poll(ends, 2, kPatienceMilliseconds) <= 0) Fail("no progress");
  }

  const int rank_, size_;
  std::vector<float> scratch_;
  int listener_ = -1, left_ = -1, right_ = -1;
};

void Verify(Ring& ring, int rank, int size, size_t length) {
  std::vector<float> array(length);
  for (size_t i = 0; i < length; ++i) array[i] = static_cast<float>(i % 1000 + 10 * rank);
  ring.AllReduce(array);
  for (size_t i = 0; i < length; ++i) {
    const float expected = static_cast<float>(i % 1000 * size + 5 * size * (size - 1));
    if (array[i] != expected) Fail("wrong sum of element " + std::to_string(i));
  }
}

double Run(Ring& ring, size_t length, int calls) {
  std::vector<float> array(length);  // zeros: sums in place stay finite
  ring.AllReduce(array);
  const auto begin = Clock::now();
  for (int i = 0; i < calls; ++i) ring.AllReduce(array);
  return std::chrono::duration<double>(Clock::now() - begin).count() / calls;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "bare_ring RANK SIZE HOST\n");
    return 2;
  }
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
  if (size < 2 || rank < 0 || rank >= size) {
    std::fprintf(stderr, "bare_ring: expected 0 <= RANK < SIZE and SIZE >= 2, received %s and %s\n",
                 argv[1], argv[2]);
    return 2;
  }
  Ring ring(rank, size, argv[3]);
  std::cout << "port " << ring.port() << std::endl;
  std::string command, host;
  size_t count = 0, bytes = 0;
  int number = 0;
  while (std::cin >> command) {
    if (command == "connect" && std::cin >> host >> number) {
      ring.Connect(host, number);
      std::cout << "connected" << std::endl;
    } else if (command == "verify" && std::cin >> count >> bytes) {
      Verify(ring, rank, size, count * bytes / sizeof(float));
      std::cout << "exact" << std::endl;
    } else if (command == "run" && std::cin >> count >> bytes >> number) {
      std::cout << Run(ring, count * bytes / sizeof(float), number) << std::endl;
    } else {
      std::fprintf(stderr, "bare_ring: unknown command '%s'\n", command.c_str());
      return 2;
    }
  }
  return 0;
}
