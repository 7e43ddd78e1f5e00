#include "core/ps/client/client.h"

#include <chrono>
#include <functional>
#include <future>
#include <utility>

#include "core/ps/client/connection_setup.h"
#include "core/ps/client/handshake.h"
#include "core/ps/client/operations/control_operations.h"

namespace tfdist::ps {

Status Client::Create(const ClientOptions& options, std::unique_ptr<Client>* out) {
  if (options.servers < 1 || options.worker < 0 || options.worker >= options.workers) {
    return InvalidArgument(StrCat("expected at least 1 server and 0 <= worker < workers, received ",
                                  options.servers, " servers, worker ", options.worker, " of ",
                                  options.workers));
  }
  if (!(options.timeout_seconds > 0)) {
    return InvalidArgument(
        StrCat("expected a timeout of more than 0 s, received ", options.timeout_seconds, " s"));
  }
  if (options.n_push < 1 || options.n_fetch < 1) {
    return InvalidArgument(StrCat("expected n_push and n_fetch of at least 1, received ",
                                  options.n_push, " and ", options.n_fetch));
  }
  std::unique_ptr<Client> made(new Client(options));
  if (Status s = ClientThread::Create(options.servers, options.timeout_seconds, &made->thread_);
      !s.ok()) {
    return s;
  }
  *out = std::move(made);
  return Status();
}

Client::Client(const ClientOptions& options)
    : state_(options, [this](OperationPtr operation) { thread_->Submit(std::move(operation)); }),
      commits_(&state_),
      tables_(&state_,
              [this](double seconds, std::function<void()> what) {
                thread_->CallLater(seconds, std::move(what));
              }),
      parameters_(&state_, &commits_, &tables_.lookups()),
      averaging_(&state_),
      connecting_(options.servers) {}

Client::~Client() = default;

Status Client::Connect(int server, const std::string& address, const Key& key, uint64_t generation,
                       double timeout_seconds) {
  if (server < 0 || server >= state_.options.servers) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat("expected a server from 0 to ", state_.options.servers - 1, ", received ", server));
  }
  const std::lock_guard<std::mutex> lock(connecting_[server]);
  // Until Adopt, no operation uses the server, and `view` stays valid.
  ServerView view;
  if (Status s = thread_->Disconnect(server, &view); !s.ok()) return s;
  Handshake handshake(Clock::now() + DurationOf(timeout_seconds));
  const bool again = view.incarnation != 0;
  Hello hello;
  hello.generation = generation;
  hello.rank = static_cast<uint32_t>(state_.options.worker);
  Status status = handshake.Begin(address, state_.options.expose, key, hello);
  if (status.ok()) {
    status = ConnectionSetup(server, &handshake, &state_.parameters, &state_.directory)
                 .Run({state_.options.process, parameters_.pushes()}, parameters_.bound(),
                      commits_.resolve(), &view);
  }
  if (!status.ok()) {
    return Status(status.code(),
                  StrCat("cannot connect to ps ", server, " (", address, "): ", status.message()));
  }
  status = thread_->Adopt(server, handshake.TakeSocket(), handshake.welcome(), view);
  if (!status.ok()) return status;
  if (again) state_.counters.Count([](ClientStats& stats) { ++stats.reconnections; });
  return Status();
}

int Client::WaitForLost(double seconds) { return thread_->WaitForLost(seconds); }
std::string Client::Waiting(double seconds) { return thread_->Waiting(seconds); }

std::vector<ServerTraffic> Client::Traffic() { return thread_->Traffic(); }

void Client::GiveUp(int server, const Status& status) {
  if (server >= 0 && server < state_.options.servers) thread_->GiveUp(server, status);
}

void Client::Readmit(int server) {
  if (server >= 0 && server < state_.options.servers) thread_->Readmit(server);
}

Status Client::Flush(double timeout_seconds) { return thread_->Flush(timeout_seconds); }

Status Client::Leave(double timeout_seconds) {
  const TimePoint start = Clock::now();
  const Status pushed = parameters_.PushAccumulated();
  const Status flushed = Flush(timeout_seconds);
  auto told = std::make_shared<std::promise<Status>>();
  std::future<Status> ended = told->get_future();
  thread_->Submit(std::make_shared<LeaveOperation>(
      state_.options.servers, [told](const Status& status) { told->set_value(status); }));
  const auto left = std::chrono::duration<double>(timeout_seconds) - (Clock::now() - start);
  if (!pushed.ok()) return pushed;
  if (!flushed.ok()) return flushed;
  if (ended.wait_for(left) == std::future_status::ready) return ended.get();
  return Status(StatusCode::kDeadlineExceeded,
                StrCat("no answer to a farewell within ", timeout_seconds, " s"));
}

void Client::Close() {
  tables_.lookups().Close();
  thread_->Close();
}

}  // namespace tfdist::ps
