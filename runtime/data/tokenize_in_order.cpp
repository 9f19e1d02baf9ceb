#include "runtime/data/tokenize_in_order.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "runtime/base/error.h"

namespace ananke {
namespace {

TokenBatch tokenize(const TextBatch& batch, Tokenizer& tokenizer, const std::string& field) {
  const Pieces pieces = pieces_of(batch, field);
  std::vector<std::int32_t> plain;
  std::vector<std::size_t> ends;
  tokenizer.encode(pieces.texts, plain, ends);
  TokenBatch out;
  out.bytes_on_disk = batch.bytes_on_disk;
  out.tokens.reserve(plain.size() + ends.size());
  const auto eos = static_cast<std::int32_t>(tokenizer.info().eos_id);
  std::size_t begin = 0;
  for (std::size_t piece = 0; piece < ends.size(); ++piece) {
    out.tokens.insert(out.tokens.end(), plain.begin() + static_cast<std::ptrdiff_t>(begin),
                      plain.begin() + static_cast<std::ptrdiff_t>(ends[piece]));
    begin = ends[piece];
    if (pieces.ends_document[piece] && eos >= 0) out.tokens.push_back(eos);
    out.pieces.push_back({out.tokens.size(), pieces.texts[piece].size(), pieces.ends_document[piece]});
  }
  return out;
}

class Line {  // of batches, in the reader's order
 public:
  Line(TextReader& reader, std::span<const std::unique_ptr<Tokenizer>> tokenizers, const std::string& field)
      : most_(2 * tokenizers.size() + 2), field_(field) {
    try {
      threads_.emplace_back([this, &reader] { read(reader); });
      for (const auto& tokenizer : tokenizers) threads_.emplace_back([this, &tokenizer] { work(*tokenizer); });
    } catch (const std::system_error& error) {
      stop();
      fail(ErrorKind::resource, "cannot start {} threads: {}; use fewer jobs", tokenizers.size() + 1, error.what());
    }
  }
  ~Line() { stop(); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // The next one, computed; null at the end.
  std::unique_ptr<TokenBatch> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return line_.empty() ? ended_ : line_.front()->done; });
    if (line_.empty()) return nullptr;
    const std::unique_ptr<Entry> entry = std::move(line_.front());
    line_.pop_front();
    --begun_;
    lock.unlock();
    changed_.notify_all();
    if (entry->error) std::rethrow_exception(entry->error);
    return std::make_unique<TokenBatch>(std::move(entry->tokens));
  }

 private:
  struct Entry {
    TextBatch text;
    TokenBatch tokens;
    std::exception_ptr error;
    bool done = false;
  };

  void stop() {
    {
      const std::scoped_lock lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void read(TextReader& reader) {
    for (;;) {
      auto entry = std::make_unique<Entry>();
      bool more = false;
      try {
        more = reader.next(entry->text);
      } catch (...) {
        entry->error = std::current_exception();
      }
      const bool last = !more;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || line_.size() < most_; });
      if (stopped_) return;
      if (more || entry->error) line_.push_back(std::move(entry));
      ended_ = last;
      lock.unlock();
      changed_.notify_all();
      if (last) return;
    }
  }

  void work(Tokenizer& tokenizer) {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || begun_ < line_.size() || ended_; });
      if (stopped_ || begun_ == line_.size()) return;
      Entry& entry = *line_[begun_++];  // stays where it is until it is done
      lock.unlock();
      if (!entry.error) {
        try {
          entry.tokens = tokenize(entry.text, tokenizer, field_);
        } catch (...) {
          entry.error = std::current_exception();
        }
      }
      lock.lock();
      entry.text = {};
      entry.done = true;
      lock.unlock();
      changed_.notify_all();
    }
  }

  const std::size_t most_;
  const std::string& field_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Entry>> line_;
  std::size_t begun_ = 0;  // of those in line, from its front
  bool ended_ = false;     // the reader will add no more
  bool stopped_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

void tokenize_in_order(TextReader& reader, std::span<const std::unique_ptr<Tokenizer>> tokenizers,
                       const std::string& field, const std::function<void(const TokenBatch&)>& write) {
  ANANKE_CHECK(!tokenizers.empty(), "no tokenizer");
  Line line(reader, tokenizers, field);
  while (const std::unique_ptr<TokenBatch> batch = line.take()) write(*batch);
}

}  // namespace ananke
