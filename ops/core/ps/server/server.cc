#include "core/ps/server/server.h"

#include <algorithm>
#include <random>
#include <utility>

#include "core/net/acceptor.h"
#include "core/net/socket.h"
#include "core/ps/server/handlers/reply_channel.h"
#include "core/ps/server/handlers/request_handler.h"
#include "core/ps/server/server_thread.h"
#include "core/ps/store/store.h"
#include "core/ps/store/sweeper.h"

namespace tfdist::ps {
namespace {

constexpr int kMaxThreads = 64;

Status Check(const ServerOptions& options) {
  const ScheduleOptions& schedule = options.schedule;
  const bool sync = schedule.mode == Mode::kSync;
  if (schedule.mode < Mode::kAsync || schedule.mode > Mode::kSsp ||
      options.compensation > Compensation::kAdaptiveRevision) {
    return InvalidArgument(StrCat("unknown mode ", static_cast<int>(schedule.mode),
                                  " or compensation ", static_cast<int>(options.compensation)));
  }
  if (schedule.workers < 1) {
    return InvalidArgument(StrCat("expected at least 1 worker, received ", schedule.workers));
  }
  if (sync && (schedule.num_aggregate < 1 || schedule.num_aggregate > schedule.workers)) {
    return InvalidArgument(StrCat("expected num_aggregate from 1 to ", schedule.workers,
                                  ", the number of workers, received ", schedule.num_aggregate));
  }
  if (schedule.staleness < 0) {
    return InvalidArgument(
        StrCat("expected a staleness of 0 or more, received ", schedule.staleness));
  }
  if (!(schedule.worker_timeout_seconds > 0) || !(schedule.start_timeout_seconds > 0)) {
    return InvalidArgument(StrCat("expected timeouts of more than 0 s, received ",
                                  schedule.worker_timeout_seconds, " and ",
                                  schedule.start_timeout_seconds));
  }
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return InvalidArgument(
        StrCat("expected 1 to ", kMaxThreads, " threads, received ", options.threads));
  }
  if (options.hogwild && sync)
    return InvalidArgument("hogwild does not go with sync: updates have turns");
  if (options.compensation != Compensation::kNone && sync) {
    return InvalidArgument("a compensation does not go with sync: there is no delay");
  }
  if (options.compensation == Compensation::kDcAsgd && options.hogwild) {
    return InvalidArgument(
        "dc-asgd does not go with hogwild: a worker's pulled values are not kept");
  }
  if (options.compensation == Compensation::kAdaptiveRevision && options.hogwild) {
    return InvalidArgument("adaptive revision does not go with hogwild: it needs an exact sum");
  }
  return Status();
}

uint64_t RandomNumber() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

}  // namespace

class Server::Impl : private ReplyChannel {
 public:
  Impl(const ServerOptions& options, Listener listener)
      : port_(listener.port()),
        incarnation_(RandomNumber()),
        store_(options, options.schedule.workers),
        handler_(options, incarnation_, &store_, this),
        acceptor_(std::move(listener)),
        workers_(options.schedule.workers),
        read_only_(options.read_only) {
    for (int i = 0; i < options.threads; ++i) {
      threads_.push_back(std::make_unique<ServerThread>(&store_, &handler_, &stats_));
    }
  }
  ~Impl() override { Close(); }

  Status CreateThreads() {
    for (auto& thread : threads_) {
      if (Status s = thread->Create(); !s.ok()) return s;
    }
    return Status();
  }

  // Fails if workers may be connected already.
  template <typename Do>
  Status BeforeStart(const Do& act) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (started_) return Status(StatusCode::kFailedPrecondition, "the server has started already");
    const Status status = act();
    restored_ = restored_ && status.ok();
    return status;
  }

  Status Start(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (started_ || closed_ || !restored_) {
      return Status(StatusCode::kFailedPrecondition,
                    "the server starts once, before it is closed, and with a whole image");
    }
    started_ = true;
    acceptor_.Open(
        threads_[0]->loop(), key, incarnation_, 0,
        [this](uint32_t rank) { return rank < static_cast<uint32_t>(workers_); },
        [this](uint32_t rank, PeerSocket socket) {
          const int seat = handler_.Seat(static_cast<int>(rank));
          if (seat < 0) return;
          const uint64_t session = next_session_++;
          ThreadOf(session)->Adopt(session, seat, std::move(socket));
        });
    for (auto& thread : threads_) thread->Start(thread == threads_[0] ? &acceptor_ : nullptr);
    sweeper_.Start();
    return Status();
  }

  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true)) return;
    handler_.events().Close();
    for (auto& thread : threads_) thread->Stop();
    sweeper_.Stop();
    acceptor_.Close();
  }

  ServerStats stats() const {
    ServerStats stats = handler_.stats();
    stats.bytes_sent = stats_.bytes_sent;
    stats.bytes_received = stats_.bytes_received;
    stats.rejected_connections = acceptor_.rejected();
    stats.broken_requests = stats_.broken_requests;
    stats.connections = stats_.connections;
    return stats;
  }

  // The table of a server that has started, and serves readers alone; null, with an error in
  // `status`.
  std::shared_ptr<Table> ServedTable(const std::string& name, Status* status) const {
    for (const auto& table : store_.tables()) {
      if (read_only_ && table->name() == name) return table;
    }
    *status = InvalidArgument(
        read_only_ ? StrCat("expected a table that is served, received '", name, "'")
                   : StrCat("table '", name, "' of workers: expected a read-only server"));
    return nullptr;
  }

  int port() const { return port_; }
  uint64_t incarnation() const { return incarnation_; }
  RequestHandler& handler() { return handler_; }
  Recovery& recovery() { return handler_.recovery(); }
  const Store& store() const { return store_; }

 private:
  ServerThread* ThreadOf(uint64_t session) { return threads_[session % threads_.size()].get(); }

  void Deliver(uint64_t session, Answer answer) override {
    ThreadOf(session)->Deliver(session, std::move(answer));
  }
  void Disconnect(uint64_t session) override { ThreadOf(session)->Disconnect(session); }
  void WakeTimer() override { threads_[0]->WakeTimer(); }

  const int port_;
  const uint64_t incarnation_;
  Store store_;
  RequestHandler handler_;
  TrafficStats stats_;
  Acceptor acceptor_;
  const int workers_;
  const bool read_only_;
  uint64_t next_session_ = 1;  // the first thread's
  std::vector<std::unique_ptr<ServerThread>> threads_;
  std::mutex mutex_;  // guards the rest
  Sweeper sweeper_{&store_};
  bool restored_ = true, started_ = false, closed_ = false;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Status Server::Create(const ServerOptions& options, const std::string& interface, int port,
                      bool local, std::unique_ptr<Server>* out) {
  if (Status s = Check(options); !s.ok()) {
    return Status(s.code(), StrCat("parameter server ", options.index, ": ", s.message()));
  }
  Listener listener;
  if (Status s = Listener::Listen(interface, port, local, &listener); !s.ok()) return s;
  auto impl = std::make_unique<Impl>(options, std::move(listener));
  if (Status s = impl->CreateThreads(); !s.ok()) return s;
  out->reset(new Server(std::move(impl)));
  return Status();
}

int Server::port() const { return impl_->port(); }
uint64_t Server::incarnation() const { return impl_->incarnation(); }
Status Server::Restore(const ServerSnapshot& snapshot) {
  return impl_->BeforeStart([&] { return impl_->recovery().Restore(snapshot); });
}
Status Server::ReplayLog(const std::string& path, uint64_t* records, uint64_t* left_out) {
  return impl_->BeforeStart([&] { return impl_->recovery().ReplayLog(path, records, left_out); });
}
void Server::BeginLog(const std::string& path) { impl_->recovery().BeginLog(path); }
Status Server::UpdateRows(const std::string& name, const SavedRowsView& rows, uint64_t floats,
                          int server, int servers) {
  Status status;
  const std::shared_ptr<Table> table = impl_->ServedTable(name, &status);
  if (table == nullptr) return status;
  if (floats != table->content_floats()) {
    return InvalidArgument(StrCat("table '", name, "': expected rows of ", table->content_floats(),
                                  " numbers, received ", floats));
  }
  table->ImportRows(rows, server, servers);
  return Status();
}
Status Server::SetStep(const std::string& name, const StepValues& step) {
  Status status;
  const std::shared_ptr<Table> table = impl_->ServedTable(name, &status);
  if (table != nullptr) table->RestoreStep(step);
  return status;
}
Status Server::RetainRows(const std::string& name, uint32_t used) {
  Status status;
  const std::shared_ptr<Table> table = impl_->ServedTable(name, &status);
  if (table != nullptr) table->RetainRows(used);
  return status;
}
void Server::Saved() { impl_->recovery().Saved(); }
Status Server::Start(const Key& key) { return impl_->Start(key); }
ServerSnapshot Server::TakeSnapshot(bool changed_rows_only, const std::string& log_path) {
  return impl_->recovery().TakeSnapshot(changed_rows_only, log_path);
}
bool Server::WaitForEvent(double seconds, Event* event) {
  return impl_->handler().events().Wait(seconds, event);
}
void Server::Waits(bool* waits) const { impl_->handler().Waits(waits); }
ServerStats Server::stats() const { return impl_->stats(); }
std::vector<std::shared_ptr<Table>> Server::tables() const { return impl_->store().tables(); }
std::vector<TraceEvent> Server::trace() const { return impl_->handler().trace(); }
TaskPositions& Server::tasks() { return impl_->handler().tasks(); }
void Server::Close() { impl_->Close(); }

}  // namespace tfdist::ps
