// Refusals in vLLM's shape: {"error": {message, type, param, code}}.

export class ApiError extends Error {
  constructor(status, type, message, param = null) {
    super(message)
    Object.assign(this, {status, type, param})
  }

  get body() {
    return {error: {message: this.message, type: this.type, param: this.param, code: this.status}}
  }
}

export class BadRequest extends ApiError {
  constructor(message, param) {
    super(400, 'BadRequestError', message, param)
  }
}

export class NotFound extends ApiError {
  constructor(message, param) {
    super(404, 'NotFoundError', message, param)
  }
}
