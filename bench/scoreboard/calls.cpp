#include "calls.h"

#include <greyhound/core/graph.h>
#include <greyhound/loss/loss.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

namespace greyhound::scoreboard {

namespace {

DType dtype_of_request(const Json& request) {
  const auto name = request.at("dtype").get<std::string>();
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw_usage("request: dtype ", name, " is not known");
}

bool wants(const Json& request, const char* gradient) {
  const Json& list = request.at("want");
  return std::find(list.begin(), list.end(), gradient) != list.end();
}

// What every kind of call has: options from the request, memory for sums, row results and scratch.
class Call {
 public:
  Call(const Context& context, const Json& request)
      : context_(context),
        request_(request),
        dtype_(dtype_of_request(request)),
        rows_(request.at("shape").at(0).get<std::int64_t>()),
        vocab_(request.at("shape").back().get<std::int64_t>()),
        sums_memory_(context, DType::uint8, {static_cast<std::int64_t>(loss::LossSums::bytes)}),
        sums_(context, sums_memory_.tensor().data) {}
  virtual ~Call() = default;

  virtual void enqueue() = 0;
  virtual void set_targets(const Json& spec) = 0;
  virtual Json loss() { return to_json(report_loss()); }

  Json outputs() {
    Json json = Json::object();
    json["loss"] = loss();
    for (const auto& [name, buffer] : results_) {
      Json values = Json::array();
      if (request_.contains("pick")) {
        for (const Json& at : request_.at("pick").at(name)) {
          values.push_back(to_json(buffer->element(context_, at.get<std::int64_t>())));
        }
      } else {
        for (double value : buffer->values(context_)) values.push_back(to_json(value));
      }
      json[name] = std::move(values);
    }
    return json;
  }

  std::uint64_t bits() {
    std::uint64_t bits = 0xcbf29ce484222325u;
    const Json value = loss();
    const std::string text = value.dump();
    bits = digest(bits, {text.begin(), text.end()});
    for (const auto& [name, buffer] : results_) bits = digest(bits, buffer->bytes(context_));
    return bits;
  }

  const Buffer& untouched() const { return *untouched_; }

 protected:
  void add_result(const std::string& name, const Buffer& buffer) { results_[name] = &buffer; }
  void keep_untouched(const Buffer& buffer) { untouched_ = &buffer; }

  loss::CrossEntropyOptions options() {
    loss::CrossEntropyOptions options;
    const auto reduction = request_.at("reduction").get<std::string>();
    options.reduction = reduction == "mean"  ? loss::Reduction::mean
                        : reduction == "sum" ? loss::Reduction::sum
                                             : loss::Reduction::none;
    options.ignore_index = request_.value("ignore_index", std::int64_t{-100});
    options.label_smoothing = request_.value("label_smoothing", 0.0f);
    options.z_loss_multiplier = z_loss_ = request_.value("z_loss", 0.0f);
    options.softcap = request_.value("softcap", 0.0f);
    reduction_ = options.reduction;
    if (request_.contains("upstream")) {
      const Json& spec = request_.at("upstream");
      upstream_ = Buffer(context_, DType::fp32, {static_cast<std::int64_t>(spec.size())});
      upstream_.fill(context_, {{"values", spec}});
      options.upstream = upstream_.tensor();
    }
    if (reduction_ == loss::Reduction::none) row_loss_ = Buffer(context_, DType::fp32, {rows_});
    return options;
  }

  loss::RowOutputs row_outputs() const {
    loss::RowOutputs rows;
    if (row_loss_) rows.loss = row_loss_.tensor();
    return rows;
  }

  // Reading throws when a target was out of range.
  double report_loss() {
    const loss::Report report = sums_.read(context_);
    if (reduction_ == loss::Reduction::mean) return report.mean_loss(z_loss_);
    return report.ce_sum + z_loss_ * report.z_sum;
  }

  Json row_losses() {
    sums_.read(context_);
    Json values = Json::array();
    for (double value : row_loss_.values(context_)) values.push_back(to_json(value));
    return values;
  }

  const Context& context_;
  const Json& request_;
  const DType dtype_;
  const std::int64_t rows_, vocab_;
  Buffer sums_memory_, upstream_, row_loss_, workspace_;
  loss::LossSums sums_;
  loss::Reduction reduction_ = loss::Reduction::sum;
  float z_loss_ = 0;

 private:
  std::map<std::string, const Buffer*> results_;
  const Buffer* untouched_ = nullptr;
};

class RowCall : public Call {
 public:
  RowCall(const Context& context, const Json& request)
      : Call(context, request),
        options_(options()),
        logits_(context, dtype_, {rows_, vocab_}, request.value("stride", std::int64_t{0})),
        targets_(context, DType::int64, {rows_}) {
    logits_.fill(context, request.at("logits"));
    set_targets(request.at("targets"));
    if (wants(request, "logits")) gradient_ = Buffer(context, dtype_, {rows_, vocab_});
    if (gradient_) add_result("grad_logits", gradient_);
    const std::size_t bytes = loss::cross_entropy_workspace_bytes(context, rows_);
    workspace_ = Buffer(context, DType::uint8, {static_cast<std::int64_t>(bytes)});
    keep_untouched(logits_);
  }

  void set_targets(const Json& spec) override { targets_.set_indices(context_, indices(spec, rows_)); }

  void enqueue() override {
    Workspace workspace(workspace_.tensor());
    sums_.reset(context_);
    loss::cross_entropy(context_, logits_.tensor(), targets_.tensor(), gradient_.tensor(), options_, workspace, sums_,
                        row_outputs());
  }

  Json loss() override { return row_loss_ ? row_losses() : Call::loss(); }

 private:
  const loss::CrossEntropyOptions options_;
  Buffer logits_, targets_, gradient_;
};

class LinearCall : public Call {
 public:
  LinearCall(const Context& context, const Json& request)
      : Call(context, request),
        options_(options()),
        hidden_(request.at("shape").at(1).get<std::int64_t>()),
        inputs_(context, dtype_, {rows_, hidden_}),
        weight_(context, dtype_, {vocab_, hidden_}),
        targets_(context, DType::int64, {rows_}) {
    inputs_.fill(context, request.at("inputs"));
    weight_.fill(context, request.at("weight"));
    set_targets(request.at("targets"));
    if (request.contains("bias")) {
      bias_ = Buffer(context, dtype_, {vocab_});
      bias_.fill(context, request.at("bias"));
    }
    loss::PlanOptions plan_options;
    plan_options.grad_input = wants(request, "input");
    plan_options.grad_weight = wants(request, "weight") || wants(request, "bias");
    plan_options.chunk_rows = request.value("chunk_rows", std::int64_t{0});
    plan_ = loss::plan_chunked_linear_loss(context, {rows_, hidden_, vocab_, dtype_}, plan_options);
    workspace_ = Buffer(context, DType::uint8, {static_cast<std::int64_t>(plan_.workspace_bytes)});
    gradients_.input = gradient("input", grad_input_, dtype_, {rows_, hidden_});
    gradients_.weight = gradient("weight", grad_weight_, DType::fp32, {vocab_, hidden_});
    gradients_.bias = gradient("bias", grad_bias_, DType::fp32, {vocab_});
    keep_untouched(inputs_);
  }

  void set_targets(const Json& spec) override { targets_.set_indices(context_, indices(spec, rows_)); }

  void enqueue() override {
    Workspace workspace(workspace_.tensor());
    sums_.reset(context_);
    loss::LinearInputs in;
    in.inputs = inputs_.tensor(), in.weight = weight_.tensor(), in.targets = targets_.tensor();
    if (bias_) in.bias = bias_.tensor();
    loss::chunked_linear_cross_entropy(context_, plan_, in, options_, gradients_, workspace, sums_, row_outputs());
  }

  Json loss() override { return row_loss_ ? row_losses() : Call::loss(); }

 private:
  loss::Gradient gradient(const std::string& name, Buffer& buffer, DType dtype, const Shape& shape) {
    if (!wants(request_, name.c_str())) return {};
    buffer = Buffer(context_, dtype, shape);
    add_result("grad_" + name, buffer);
    return loss::overwrite(buffer.tensor());
  }

  const loss::CrossEntropyOptions options_;
  const std::int64_t hidden_;
  Buffer inputs_, weight_, targets_, bias_, grad_input_, grad_weight_, grad_bias_;
  loss::Plan plan_;
  loss::LinearGradients gradients_;
};

// Its "loss" are the log-probabilities; "upstream" is their gradient.
class SelectiveCall : public Call {
 public:
  SelectiveCall(const Context& context, const Json& request)
      : Call(context, request),
        per_row_(request.value("indices_per_row", std::int64_t{0})),
        logits_(context, dtype_, {rows_, vocab_}, request.value("stride", std::int64_t{0})),
        index_(context, DType::int64, index_shape()),
        out_(context, DType::fp32, index_shape()),
        lse_(context, DType::fp32, {rows_}) {
    logits_.fill(context, request.at("logits"));
    set_targets(request.at("targets"));
    if (wants(request, "logits")) {
      gradient_ = Buffer(context, dtype_, {rows_, vocab_});
      add_result("grad_logits", gradient_);
      upstream_ = Buffer(context, DType::fp32, index_shape());
      upstream_.fill(context, {{"values", request.at("upstream")}});
    }
    keep_untouched(logits_);
  }

  void set_targets(const Json& spec) override {
    index_.set_indices(context_, indices(spec, rows_ * std::max<std::int64_t>(per_row_, 1)));
  }

  void enqueue() override {
    loss::selective_log_softmax(context_, logits_.tensor(), index_.tensor(), out_.tensor(), {}, lse_.tensor());
    if (!gradient_) return;
    loss::selective_log_softmax_backward(context_, upstream_.tensor(), index_.tensor(), logits_.tensor(), lse_.tensor(),
                                         gradient_.tensor());
  }

  Json loss() override {
    Json values = Json::array();
    for (double value : out_.values(context_)) values.push_back(to_json(value));
    return values;
  }

 private:
  Shape index_shape() const { return per_row_ == 0 ? Shape{rows_} : Shape{rows_, per_row_}; }

  const std::int64_t per_row_;
  Buffer logits_, index_, out_, lse_, gradient_;
};

std::unique_ptr<Call> make_call(const Context& context, const Json& request) {
  const auto kind = request.at("call").get<std::string>();
  if (kind == "rows") return std::make_unique<RowCall>(context, request);
  if (kind == "linear") return std::make_unique<LinearCall>(context, request);
  require(kind == "selective", "request: call ", kind, " is not known");
  return std::make_unique<SelectiveCall>(context, request);
}

}  // namespace

Json answer(const Context& context, const Json& request) {
  const std::unique_ptr<Call> call = make_call(context, request);
  const bool watch = request.value("watch_inputs", false);
  const std::vector<unsigned char> before = watch ? call->untouched().bytes(context) : std::vector<unsigned char>();
  call->enqueue();
  context.synchronize();
  if (request.contains("capture")) {
    const Graph graph(context, [&] { call->enqueue(); });
    call->set_targets(request.at("capture").at("targets"));
    graph.launch(context);
    context.synchronize();
  }
  Json result = call->outputs();
  result["status"] = "ok";
  if (watch) result["inputs_unchanged"] = call->untouched().bytes(context) == before;
  // There is no backward pass apart from the call: a second one is a second call.
  if (request.value("second_backward", false)) {
    call->enqueue();
    result["second"] = call->outputs();
  }
  if (request.contains("repeat")) {
    Json digests = Json::array();
    for (int i = 0; i < request.at("repeat").get<int>(); ++i) {
      call->enqueue();
      digests.push_back(std::to_string(call->bits()));
    }
    result["digests"] = std::move(digests);
  }
  return result;
}

}  // namespace greyhound::scoreboard
